"""Write check and lock of the run directory."""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lopt.errors import UserError


def check_writable(directory: Path, *, flag: str) -> None:
    """Create `directory` and validate that it is writable.

    Args:
        directory: Directory to check.
        flag: Command-line flag to name in the error message.

    Raises:
        UserError: If the directory cannot be created or written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise UserError(
            f"`{flag}` must be a directory that can be written; {directory} is not "
            f"({error.strerror}). Try another {flag}."
        ) from error


@contextlib.contextmanager
def lock_run_directory(run_dir: Path) -> Iterator[None]:
    """Lock `run_dir` exclusively for the duration of the context.

    The operating system releases the lock (`flock`) when the process ends.

    Raises:
        UserError: If another process holds the lock.
    """
    descriptor = os.open(run_dir, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                f"{run_dir} is in use by another `lopt meta-train`. "
                "Wait for it, or try another --run-dir."
            ) from error
        yield
    finally:
        os.close(descriptor)


def is_locked(run_dir: Path) -> bool:
    """Check whether the run in `run_dir` is active: a process holds its lock."""
    descriptor = os.open(run_dir, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
