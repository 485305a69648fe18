"""Progress reports: a bar with ETA on a terminal or in a notebook, lines otherwise."""

import sys
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from lopt.cli.output import FaultTolerantOutput, printable, wrapped

_SECONDS_BETWEEN_LINES = 10.0
_BAR_WIDTH = 20


class ProgressReport:
    """Progress bar of a job; other output is printed above the bar.

    Without a terminal, `update` prints a line at most every ten seconds and at the end.
    In a notebook, this line has a bar and replaces the previous one.
    """

    def __init__(self, title: str, total: int, *, unit: str = "", quiet: bool = False):
        """Initialize the report at 0 of `total` steps.

        Args:
            title: Label of the bar and prefix of the lines.
            total: Number of steps of the job.
            unit: "%" to show the completed percentage instead of steps.
            quiet: Whether to suppress all output.
        """
        output: Any = FaultTolerantOutput(sys.stdout)
        self._is_notebook, self._shown = in_notebook(), 0
        # Kernels claim to be terminals, but do not move the cursor.
        self.console = Console(
            file=output,
            quiet=quiet,
            force_jupyter=False,
            force_terminal=False if self._is_notebook else None,
        )
        self._title, self._total, self._first = title, total, 0.0
        self._unit = unit
        self._done, self._lock = 0, threading.Lock()
        self._start = time.monotonic()
        self._pause = 0.2 if self._is_notebook else _SECONDS_BETWEEN_LINES
        self._next_line = self._start + self._pause
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn() if unit else MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            disable=quiet or not self.console.is_terminal,
        )
        self._task = self._bar.add_task(title, total=total, note="")

    def __enter__(self) -> "ProgressReport":
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Print `text` as separate lines, without markup or control characters."""
        text = printable(text)
        if self._shown:  # Clear the bar of a notebook.
            self.console.file.write(f"\r{' ' * self._shown}\r")
            self._shown = 0
        if self.console.is_terminal:
            text = wrapped(text)  # leaves paths whole, unlike `Console.print`
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def resume(self, done: int) -> None:
        """Restart the clock at step `done`; earlier steps do not affect the ETA."""
        self._first, self._start = done, time.monotonic()
        self._bar.reset(self._task, completed=done, total=self._total)

    def note(self, text: str) -> None:
        """Show the current activity while there are no steps to count."""
        self._bar.update(self._task, note=text)
        if not self.console.is_terminal:
            self.say(text)

    def advance(self, note: str) -> None:
        """Advance by one step (thread-safe)."""
        with self._lock:
            self._done += 1
            done = self._done
        self.update(done, note=note)

    def update(
        self,
        done: float,
        values: Mapping[str, float] | None = None,
        *,
        note: str = "",
        total: int | None = None,
    ) -> None:
        """Set the number of completed steps.

        Args:
            done: Completed steps.
            values: Latest metrics to show next to the bar, by name.
            note: Text to show if there are no `values`.
            total: New number of steps of the job, if it has changed.
        """
        self._total = self._total if total is None else total
        note = "  ".join([f"{k} {v:.4g}" for k, v in (values or {}).items()]) or note
        self._bar.update(self._task, completed=done, total=self._total, note=note)
        now = time.monotonic()
        if self.console.is_terminal or (now < self._next_line and done < self._total):
            return
        self._next_line = now + self._pause
        rate = (done - self._first) / (now - self._start)
        eta = f"{(self._total - done) / rate:.0f} s" if rate > 0 else "unknown"
        at = f"{done:.0f} {self._unit}" if self._unit else f"{done}/{self._total}"
        line = f"{self._title} {at}  {note}  ETA {eta}"
        if self._is_notebook and done < self._total:
            self._redraw(f"{_bar(done / self._total)} {line}")
        else:
            self.say(line)

    def _redraw(self, line: str) -> None:
        """Replace the bar of a notebook by `line`."""
        if self.console.quiet:
            return
        line = printable(line)
        self.console.file.write(f"\r{line.ljust(self._shown)}")
        self.console.file.flush()
        self._shown = len(line)


def in_notebook() -> bool:
    """Check whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"


def _bar(fraction: float) -> str:
    full = round(_BAR_WIDTH * min(max(fraction, 0.0), 1.0))
    return "█" * full + "░" * (_BAR_WIDTH - full)
