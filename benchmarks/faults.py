"""Faults of a meta-training run: signals, disk, output, logger and checkpoints."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meta_train.runtime.progress import ProgressReport

_RUN = (
    *("meta-train", "quadratic-schedule", "--estimator.num-pairs=1024"),
    *("--log-every-steps=1", "--evaluate-every-steps=200", "--wandb=offline"),
    *("--checkpoint-every-steps=50", "--checkpoint-every-minutes=0.1"),
)
_SECONDS_TO_EXIT = 600.0
_LEAST_FAULTS = 3
_SECONDS_TO_ADVANCE = 300.0
_SHARE_AT_START = 0.25  # of the faults, at most five seconds after the start
_MANIFEST = "sha256.json"


class Chaos:
    """A run, and the faults that are injected into it.

    Attributes:
        run_dir: Directory of the run.
        problems: Descriptions of what must not happen, such as a wrong exit code.
    """

    def __init__(self, folder: Path, num_steps: int, seed: int, is_small: bool):
        """Prepare a run of `num_steps` in `folder`.

        Args:
            folder: Directory of the run and its logs.
            num_steps: Number of outer steps.
            seed: Seed of the faults.
            is_small: Whether `folder` is a file system that may be filled.
        """
        self.run_dir, self.problems = folder / "run", list[str]()
        self._folder, self._num_steps = folder, num_steps
        self._random = random.Random(seed)
        self._counts, self._num_starts, self._codes = Counter(), 0, Counter()
        self._damaged, self._next = set[Path](), list[str]()
        self._faults: dict[str, Callable[[], bool]] = {
            "kill -9": lambda: self._signal(signal.SIGKILL),
            "SIGTERM": lambda: self._signal(signal.SIGTERM),
            "SIGHUP": lambda: self._signal(signal.SIGHUP),
            "SIGSTOP, SIGCONT": self._freeze,
            "standard output closed": self._close_output,
            "logger killed": self._kill_logger,
            "newest checkpoint damaged": self._damage,
        }
        if is_small:
            self._faults["disk full"] = self._fill
            self._faults["disk full, kill -9, restart"] = self._kill_while_full
        else:
            print("no tmpfs can be mounted: the fault `disk full` is left out")

    def run(self, seconds: float) -> None:
        """Inject faults for `seconds`, and at least three, until the run ends."""
        end = time.monotonic() + seconds

        def is_calm():
            enough = sum(self._counts.values()) >= _LEAST_FAULTS
            return enough and time.monotonic() > end

        with ProgressReport("chaos", self._num_steps) as progress:
            self._launch()
            try:
                while not self._is_complete():
                    if is_calm():
                        self._wait(10.0)
                    else:
                        self._wait_for_fault(min(10.0, seconds / 20))
                    num = sum(self._counts.values())
                    progress.update(self._newest_step(), note=f"{num} faults")
                    if self._process.poll() is not None:
                        self._relaunch({0})
                    elif not is_calm():
                        self._inject()
            finally:
                self._process.kill()
                self._output.kill()

    def _wait_for_fault(self, longest: float) -> None:
        """Wait for a random time, as a rule until the run has advanced.

        Args:
            longest: Longest time to wait after that, in seconds.
        """
        if self._random.random() < _SHARE_AT_START:
            self._wait(self._random.uniform(0.3, 5.0))
            return
        give_up = time.monotonic() + _SECONDS_TO_ADVANCE
        while self._newest_step() <= self._first_step and time.monotonic() < give_up:
            self._wait(0.2)
            if self._process.poll() is not None:
                return
        self._wait(self._random.uniform(0.0, longest))

    def print_table(self) -> None:
        """Print the number of injected faults and of starts."""
        print(f"{'fault':<30}{'number':>7}")
        for name in self._faults:
            print(f"{name:<30}{self._counts[name]:>7}")
        print(f"{'all':<30}{sum(self._counts.values()):>7}")
        codes = ", ".join(f"{code}: {n}" for code, n in sorted(self._codes.items()))
        print(f"{self._num_starts} starts; exit codes {codes}")

    def _launch(self) -> None:
        """Start the run; its standard output is a pipe to `cat`."""
        with (self._folder.parent / "output").open("ab") as file:
            self._output = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file)
        self._errors = self._folder.parent / "errors"
        self._process = start_run(
            self.run_dir, self._num_steps, self._errors, self._output.stdin
        )
        assert self._output.stdin is not None
        self._output.stdin.close()  # The run has a copy.
        # Without room for its last checkpoint, a run exits with 2.
        self._met_full_disk = (self._folder / "filler").exists()
        self._first_step = self._newest_step()
        self._num_starts += 1

    def _relaunch(self, allowed: set[int]) -> None:
        """Wait until the run exits; start it again, unless it is complete."""
        self._note_exit(allowed)
        if not self._is_complete():
            self._launch()

    def _is_complete(self) -> bool:
        ended = self._process.poll() == 0
        return ended and (self.run_dir / "optimizer.safetensors").exists()

    def _wait(self, seconds: float) -> None:
        """Wait, or until the run ends."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def _inject(self) -> None:
        """Inject the next fault of a random order that has each fault equally often."""
        if not self._next:
            self._next = self._random.sample(list(self._faults), len(self._faults))
        name = self._next.pop()
        if self._faults[name]():
            self._counts[name] += 1

    def _note_exit(self, allowed: set[int]) -> None:
        """Record the exit of the run, and what must not happen."""
        try:
            code = self._process.wait(_SECONDS_TO_EXIT)
        except subprocess.TimeoutExpired:
            self.problems.append(f"start {self._num_starts} did not exit in time")
            self._process.kill()
            code = self._process.wait()
        self._codes[code] += 1
        self._output.kill()
        self._output.wait()
        said = self._errors.read_text()
        if self._met_full_disk:
            allowed = {*allowed, 2}
        if code not in allowed or "Traceback" in said:
            self.problems.append(f"start {self._num_starts} exited with {code}: {said}")

    def _signal(self, number: signal.Signals) -> bool:
        # Until the run handles signals, they have their default effect.
        has_handler = _handles(self._process.pid, number)
        self._process.send_signal(number)
        self._relaunch({0} if has_handler else {0, -number})
        return True

    def _freeze(self) -> bool:
        self._process.send_signal(signal.SIGSTOP)
        time.sleep(self._random.uniform(0.2, 4.0))
        self._process.send_signal(signal.SIGCONT)
        return True

    def _close_output(self) -> bool:
        is_open = self._output.poll() is None
        self._output.kill()
        self._output.wait()
        return is_open

    def _kill_logger(self) -> bool:
        services = [i for i in _children(self._process.pid) if _name(i) == "wandb-core"]
        for service in services:
            os.kill(service, signal.SIGKILL)
        return bool(services)

    def _fill(self) -> bool:
        self._set_full()
        self._wait(self._random.uniform(0.5, 6.0))
        self._set_free()
        return True

    def _kill_while_full(self) -> bool:
        self._set_full()
        self._wait(self._random.uniform(0.0, 2.0))
        self._process.kill()
        self._relaunch({0, -signal.SIGKILL})
        self._wait(self._random.uniform(0.5, 20.0))
        self._set_free()
        return True

    def _set_full(self) -> None:
        self._met_full_disk = True
        with (self._folder / "filler").open("ab", buffering=0) as file:
            while free := shutil.disk_usage(self._folder).free:
                with contextlib.suppress(OSError):
                    os.posix_fallocate(file.fileno(), file.tell(), free)
                    file.seek(0, os.SEEK_END)

    def _set_free(self) -> None:
        (self._folder / "filler").unlink(missing_ok=True)

    def _damage(self) -> bool:
        """Kill the run and damage its newest checkpoint, unless it is the only one."""
        self._process.kill()
        self._note_exit({0, -signal.SIGKILL})
        valid = [path for path in self._sealed() if path not in self._damaged]
        if len(valid) > 1:
            newest = valid[-1]
            self._damaged.add(newest)
            victim = self._random.choice(
                sorted(p for p in newest.rglob("*") if p.is_file())
            )
            content = bytearray(victim.read_bytes())
            kind = self._random.choice(("flip", "truncate", "delete"))
            if kind == "delete" and victim.name != _MANIFEST:
                victim.unlink()
            elif kind == "truncate" or not content:
                victim.write_bytes(content[: len(content) // 2] or b"x")
            else:
                content[self._random.randrange(len(content))] ^= 1
                victim.write_bytes(content)
        if not self._is_complete():
            self._launch()
        return len(valid) > 1

    def _sealed(self) -> list[Path]:
        """List the checkpoints with a manifest, in order."""
        found = (self.run_dir / "checkpoints").glob(f"*/{_MANIFEST}")
        paths = [path.parent for path in found if path.parent.name.isdigit()]
        return sorted(paths, key=lambda path: int(path.name))

    def _newest_step(self) -> int:
        return max((int(path.name) for path in self._sealed()), default=0)


def start_run(
    run_dir: Path, num_steps: int, errors: Path, output: Any = subprocess.DEVNULL
) -> subprocess.Popen:
    command = [sys.executable, "-m", "lopt", *_RUN, f"--num-outer-steps={num_steps}"]
    with errors.open("wb") as file:
        return subprocess.Popen(
            [*command, "--run-dir", str(run_dir)],
            stdout=output,
            stderr=file,
            env={**os.environ, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"},
        )


def _handles(pid: int, number: int) -> bool:
    """Check whether a process has installed a handler of a signal."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()
