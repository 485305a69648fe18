"""The run directory: whether it can be written, and who is writing."""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lopt.errors import UserError


def check_writable(directory: Path, *, flag: str) -> None:
    """Makes `directory` and writes to it, or says that another must be tried."""
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
def held(run_dir: Path) -> Iterator[None]:
    """Keeps other runs out of `run_dir`; the system lets go when the process ends."""
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
