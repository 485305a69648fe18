"""Standard output that may break without ending the program."""

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any


class FaultTolerantOutput:
    """Standard output whose failures are reported once, on standard error.

    Terminals hang up, readers of a pipe exit, and disks fill up. Every write is
    attempted, since some failures pass.
    """

    def __init__(self, stream: Any):
        """Wrap the text stream `stream`."""
        self._stream = stream
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
            if not self._has_failed:
                complain(
                    f"standard output cannot be written ({error}); the command "
                    "continues without it."
                )
            self._has_failed = True
            drop_unwritten(self._stream)


def complain(text: str) -> None:
    """Print printable text to standard error, if possible."""
    with contextlib.suppress(OSError, ValueError):
        print(printable(text), file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """Replace control characters, which terminals interpret, by question marks."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


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
