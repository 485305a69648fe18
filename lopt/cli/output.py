"""Standard output that may break without ending the program."""

import contextlib
import functools
import os
import shutil
import sys
import textwrap
from collections.abc import Callable
from typing import Any


class FaultTolerantOutput:
    """Standard output whose failures are reported once, on standard error.

    Terminals hang up, readers of a pipe exit, and disks fill up. Every write is
    attempted, since some failures pass.
    """

    def __init__(self, stream: Any):
        """Wrap the text stream `stream`."""
        # A progress bar redirects `sys.stderr` to its console, whose output this is.
        self._stream, self._errors = stream, sys.stderr
        self._has_failed = False

    def __getattr__(self, name: str) -> Any:
        """Delegate attributes such as `encoding` and `isatty`."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write `text`, or drop it if that fails."""
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream, if possible."""
        self._attempt(self._stream.flush)

    def _attempt(self, function: Callable[[], object]) -> None:
        try:
            function()
        except (OSError, ValueError) as error:  # `ValueError`: the stream is closed
            drop_unwritten(self._stream)
            if not self._has_failed:
                self._has_failed = True
                complain(
                    f"standard output cannot be written ({error}); the command "
                    "continues without it.",
                    self._errors,
                )


def complain(text: str, stream: Any = None) -> None:
    """Print printable text to `stream` if possible, by default standard error.

    Terminals break lines within words: wrap there, and nowhere else.
    """
    with contextlib.suppress(OSError, ValueError):
        text, stream = printable(text), stream or sys.stderr
        if stream.isatty():
            text = wrapped(text)
        print(text, file=stream, flush=True)


def wrapped(text: str) -> str:
    """Wrap the lines of a text between words, at the width of the terminal."""
    width = shutil.get_terminal_size().columns
    wrap = functools.partial(
        textwrap.fill, width=width, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(map(wrap, text.split("\n")))


def printable(text: str) -> str:
    """Replace control characters, which terminals interpret, by question marks."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def open_standard_streams() -> None:
    """Open the null device in place of closed standard streams.

    The files that are opened next would otherwise receive their descriptors, and what
    libraries print would be written to those files.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free descriptor is `number`: those below it are open.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def drop_unwritten(stream: Any) -> None:
    """Drop the text that a failed write has left in the buffer of `stream`.

    The interpreter would otherwise try to write it at exit, and fail again.
    """
    with contextlib.suppress(OSError, ValueError):
        number = stream.fileno()
        original, null = os.dup(number), os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, number)
            stream.flush()
            os.dup2(original, number)
        finally:
            os.close(original)
            os.close(null)
