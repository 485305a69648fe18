"""Progress of an evaluation, weighted by the work of its stages."""

import threading
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from evaluation.suites import Case
from tasks.size import size

Advance: TypeAlias = Callable[[float], None]
"""Called with the fraction of a stage that was completed since the last call."""


def no_progress(fraction: float) -> None:
    """Ignore the progress of a stage."""
    del fraction


class Work:
    """Completed and planned work, in FLOPs of gradients over all runs. Thread-safe."""

    def __init__(self, planned: float, report: Callable[[float, str], None]):
        """Initialize the record without completed work.

        Args:
            planned: Work of all planned stages.
            report: Called with the completed fraction, below 1 until `finish`, and a
                description of the stage. It may be called from a worker thread.
        """
        self._planned, self._report = planned, report
        self._done = self._share = 0.0
        self._lock, self._is_stopped = threading.Lock(), False

    def stage(
        self, case: Case, text: str, num_runs: int, *, is_planned: bool = True
    ) -> Advance:
        """Make the callback of a stage of `num_runs` runs.

        Args:
            case: Case of the runs.
            text: Description of the stage.
            num_runs: Number of runs of the length of the case.
            is_planned: Whether the planned work includes this stage.
        """
        amount = num_runs * work_per_run(case)

        def advance(fraction: float) -> None:
            with self._lock:
                if self._is_stopped:
                    raise InterruptedError
                self._done += amount * fraction
                # Unplanned stages do not set the progress back.
                self._share = max(self._share, self._done / self._planned)
                self._report(min(self._share, 0.99), f"{case.name}: {text}")

        with self._lock:
            self._planned += 0.0 if is_planned else amount
        return advance

    def stop(self) -> None:
        """Raise `InterruptedError` in threads that report further progress."""
        with self._lock:
            self._is_stopped = True

    def finish(self, text: str) -> None:
        """Report that all work is completed."""
        self._report(1.0, text)


def work_per_run(case: Case) -> float:
    """FLOPs of the gradients of one run; at least 1 per step."""
    return case.num_steps * max(float(np.nan_to_num(size(case.task).flops)), 1.0)
