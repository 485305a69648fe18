"""Reading of files from outside: regular files of bounded size."""

import stat
from pathlib import Path


def check_regular(path: Path, largest: int) -> None:
    """Validate that `path` is a regular file of at most `largest` bytes.

    Opening a pipe would block, and reading a device might never end.

    Raises:
        OSError: If the file does not exist or is not accessible.
        ValueError: If it is not regular or too large.
    """
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise ValueError("it is not a regular file")
    if about.st_size > largest:
        raise ValueError(f"it has {about.st_size:,} bytes, above {largest:,}")


def read_bounded(path: Path, largest: int) -> bytes:
    """Read a regular file of at most `largest` bytes.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is not regular or too large.
    """
    check_regular(path, largest)
    return path.read_bytes()
