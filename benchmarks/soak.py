"""Soak test for memory growth in a long run: ``python -m benchmarks.soak [MINUTES]``.

The run saves a checkpoint every minute, evaluates every 100 outer steps and logs to
wandb offline. The default duration is 60 minutes.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

SECONDS_BETWEEN, WARM_UP = 10.0, 0.25
RUN = (
    *("meta-train", "digits-mlp", "--num-outer-steps=10000000", "--wandb=offline"),
    *("--checkpoint-every-minutes=1", "--evaluate-every-steps=100"),
)


def main() -> None:
    """Sample the resident memory of a run, print its trend and plot it to `soak.png`.

    The trend is a linear fit that excludes the first quarter of the run.
    """
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    samples = []
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("w") as file:
            run = subprocess.Popen(
                [sys.executable, "-m", "lopt", *RUN, "--run-dir", f"{folder}/run"],
                stdout=file,
                stderr=file,
                env={**os.environ, "WANDB_DIR": folder},
            )
        start = time.monotonic()
        while run.poll() is None and time.monotonic() - start < 60 * minutes:
            time.sleep(SECONDS_BETWEEN)
            samples.append(((time.monotonic() - start) / 60, _resident_mb(run.pid)))
        run.send_signal(signal.SIGTERM)
        code = run.wait()
        print("\n".join(log.read_text().splitlines()[-3:]))
        saved = sorted(path.name for path in Path(folder, "run/checkpoints").iterdir())
    print(f"exit code {code}; checkpoints kept: {', '.join(saved)}")
    time_min, memory_mb = np.array(samples).T
    for mark in np.linspace(minutes * WARM_UP, minutes, 10):
        print(f"{mark:6.1f} min  {np.interp(mark, time_min, memory_mb):8.1f} MB")
    late = time_min > minutes * WARM_UP
    trend = np.polyfit(time_min[late], memory_mb[late], 1)[0]
    print(f"after the first quarter: {60 * trend:+.1f} MB per hour")
    plt.plot(time_min, memory_mb)
    plt.ylim(bottom=0)
    plt.xlabel("minutes")
    plt.ylabel("resident memory (MB)")
    plt.savefig("soak.png")


def _resident_mb(pid: int) -> float:
    """Read the resident set size of a process, or NaN if it has exited."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return float("nan")  # A zombie process has no VmRSS entry.


if __name__ == "__main__":
    main()
