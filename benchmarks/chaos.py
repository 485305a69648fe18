"""One meta-training under random faults: ``python -m benchmarks.chaos --minutes 30``.

The run is killed, stopped, frozen and damaged at random times, and always resumed by
the same command. Its final theta must be bitwise equal to that of an undisturbed run,
and its metrics must have every step once, with equal values.

A full disk is a small tmpfs that the script mounts, which needs root. Without root,
this fault is left out.
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import lopt
from benchmarks.faults import Chaos, start_run
from meta_train.runtime.metrics_file import read_metrics

_DISK_BYTES = 2**28
# Fraction of the time in which the run makes progress that is not lost.
_EFFICIENCY = 0.25


def main() -> int:
    """Run the faults, print a table of them and the result of the comparison."""
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.chaos")
    arguments.add_argument("--minutes", type=float, default=30.0)
    arguments.add_argument("--seed", type=int, default=0)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="lopt-chaos-") as name:
        folder = Path(name)
        seconds = 60 * options.minutes
        rate = _measure_rate(folder / "rate", min(10.0, seconds / 5))
        num_steps = max(100, int(rate * seconds * _EFFICIENCY))
        print(f"{num_steps} outer steps; seed {options.seed}", flush=True)
        with _disk(folder / "disk") as is_small:
            reference = start_run(folder / "undisturbed", num_steps, folder / "log")
            try:
                chaos = Chaos(folder / "disk", num_steps, options.seed, is_small)
                chaos.run(seconds)
                print("waiting for the undisturbed run", flush=True)
                reference.wait()
            finally:
                reference.kill()
            chaos.print_table()
            problems = chaos.problems + differences(
                folder / "undisturbed", chaos.run_dir, num_steps
            )
    for problem in problems:
        print(f"PROBLEM: {problem}")
    if not problems:
        print(
            f"theta is bitwise equal; metrics have {num_steps} steps once, with equal "
            "values."
        )
    return int(bool(problems))


def _measure_rate(run_dir: Path, seconds: float) -> float:
    """Measure the outer updates per second of a run, for `seconds`, and kill it."""
    metrics, log = run_dir / "metrics.jsonl", run_dir.with_suffix(".log")
    process = start_run(run_dir, 10**7, log)
    try:
        while (num := len(read_metrics(metrics))) < 10:
            if process.poll() is not None:
                raise SystemExit(log.read_text())
            time.sleep(0.1)
        start = time.monotonic()
        time.sleep(seconds)
    finally:
        process.kill()
        process.wait()
    return (len(read_metrics(metrics)) - num) / (time.monotonic() - start)


@contextlib.contextmanager
def _disk(folder: Path) -> Iterator[bool]:
    """Mount a small tmpfs at `folder`, if possible; yield whether it is mounted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(folder)]
    is_small = not subprocess.run(mount, stderr=subprocess.DEVNULL).returncode
    try:
        yield is_small
    finally:
        if is_small:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def differences(expected: Path, found: Path, num_steps: int) -> list[str]:
    """Compare theta and the metrics of two runs of `num_steps` outer steps."""
    problems = []
    thetas = [
        np.asarray(lopt.load_theta(run_dir / "optimizer.safetensors")[1]).tobytes()
        for run_dir in (expected, found)
    ]
    if thetas[0] != thetas[1]:
        problems.append("theta differs from that of the undisturbed run")
    logs = [read_metrics(run_dir / "metrics.jsonl") for run_dir in (expected, found)]
    steps = [line["step"] for line in logs[1]]
    if steps != list(range(num_steps + 1)):
        counts = Counter(steps)
        missing = [i for i in range(num_steps + 1) if not counts[i]]
        double = [i for i, count in counts.items() if count > 1]
        problems.append(f"metrics lack steps {missing[:9]}; twice: {double[:9]}")
    by_step = {line["step"]: _without_speed(line) for line in logs[1]}
    unequal = [
        line["step"]
        for line in logs[0]
        if by_step.get(line["step"]) != _without_speed(line)
    ]
    if unequal:
        problems.append(f"metrics differ at steps {unequal[:9]}")
    return problems


def _without_speed(line: dict) -> dict:
    return {k: v for k, v in line.items() if k != "inner_steps_per_second"}


if __name__ == "__main__":
    sys.exit(main())
