"""Cache directories, private to the user."""

import os
import stat
from pathlib import Path


def cache_folder(name: str) -> Path | None:
    """Path of a subdirectory of lopt's cache; it may not exist yet.

    The cache is ``$XDG_CACHE_HOME/lopt``, or ``~/.cache/lopt`` if the variable is unset
    or empty.

    Returns:
        An absolute path, or `None` without a home directory: a relative path would mean
        another cache in every working directory, which others may have prepared.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "lopt" / name if os.path.isabs(home) else None


def make_private(folder: Path) -> None:
    """Create a subdirectory of the cache, accessible to the user only (mode 0700).

    Raises:
        PermissionError: If it or the cache exists and belongs to another user.
        OSError: If it cannot be created.
    """
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    for path in (folder.parent, folder):
        path.mkdir(mode=0o700, exist_ok=True)
        if path.stat().st_uid == os.geteuid():
            path.chmod(0o700)
        check_private(path)


def check_private(path: Path) -> None:
    """Validate that only this user and root can change a file or directory.

    Raises:
        PermissionError: If another user owns it, or its group or others can write.
        OSError: If it does not exist.
    """
    about = path.stat()
    if about.st_uid not in (os.geteuid(), 0):
        raise PermissionError(f"{path} belongs to another user")
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{path} can be written by others")
