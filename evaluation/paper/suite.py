"""Running of several experiments, each in a process of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from evaluation.paper.experiment import Experiment, Scale
from evaluation.paper.runner import RECORD_FILE
from meta_train.runtime.progress import ProgressReport

LOG_FILE = "log.txt"
_SECONDS_BETWEEN_POLLS = 0.5


class Suite:
    """Experiments that run in child processes, a fixed number at a time.

    A process for each experiment frees the memory of its programs, and an experiment
    that fails does not end the others.
    """

    def __init__(
        self, experiments: Sequence[Experiment], scale: Scale, out: Path, workers: int
    ):
        """Initialize without starting anything.

        Args:
            experiments: Experiments with the settings of `scale`.
            scale: Scale of the experiments.
            out: Directory of their results.
            workers: Number of experiments to run at a time.
        """
        # The longest first, so that no long one is left at the end.
        self._left = sorted(experiments, key=lambda e: -e.minutes[scale])
        self._scale, self._out = scale, out
        self._jobs = {e.name: [job.name for job in e.jobs()] for e in experiments}
        self._minutes = {e.name: e.minutes[scale] for e in experiments}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        cores = _cores()
        workers = min(workers, len(cores))
        self._cores = [cores[i::workers] for i in range(workers)]
        self._busy: dict[str, list[int]] = {}
        self.failed: dict[str, int] = {}

    def run(self, progress: ProgressReport) -> None:
        """Run all experiments until they end; a signal stops and saves them.

        Raises:
            KeyboardInterrupt: After Ctrl-C or SIGTERM, when the children have ended.
        """
        previous = signal.signal(signal.SIGTERM, _interrupt)
        try:
            while self._left or self._running:
                self._start()
                time.sleep(_SECONDS_BETWEEN_POLLS)
                self._collect()
                progress.update(self._done(), note=", ".join(self._running))
        except KeyboardInterrupt:
            for child in self._running.values():
                child.terminate()
            for child in self._running.values():
                child.wait()
            raise
        finally:
            signal.signal(signal.SIGTERM, previous)

    @property
    def total(self) -> int:
        """Total amount of work, in hundredths of a minute."""
        return round(100 * sum(self._minutes.values()))

    def _start(self) -> None:
        free = [cores for cores in self._cores if cores not in self._busy.values()]
        for cores in free[: len(self._left)]:
            name = self._left.pop(0).name
            (self._out / name).mkdir(parents=True, exist_ok=True)
            command = [sys.executable, "-m", "lopt", "reproduce", name, "--no-report"]
            command += ["--scale", self._scale, "--out", str(self._out)]
            with (self._out / name / LOG_FILE).open("ab") as log:
                child = subprocess.Popen(command, stdout=log, stderr=log)
            if hasattr(os, "sched_setaffinity"):
                # Threads that the child starts later run on the same cores.
                os.sched_setaffinity(child.pid, cores)
            self._running[name], self._busy[name] = child, cores

    def _collect(self) -> None:
        for name, child in list(self._running.items()):
            code = child.poll()
            if code is not None:
                del self._running[name], self._busy[name]
                if code:
                    self.failed[name] = code

    def _done(self) -> int:
        return round(100 * sum(self._share(n) * m for n, m in self._minutes.items()))

    def _share(self, name: str) -> float:
        jobs = self._jobs[name]
        paths = [self._out / name / job / RECORD_FILE for job in jobs]
        return sum(path.exists() for path in paths) / len(jobs)


def _cores() -> list[int]:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def last_line(out: Path, name: str) -> str:
    """Last line that an experiment printed."""
    lines = (out / name / LOG_FILE).read_text(errors="replace").splitlines()
    return lines[-1] if lines else ""


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt
