"""Integrity of checkpoint directories: SHA-256 manifests, links, pipes and devices."""

import errno
import hashlib
import os
import shutil
import stat
from pathlib import Path

from lopt.errors import one_line
from lopt.files.json_file import read_object

MANIFEST = "sha256.json"
UNFINISHED = "was not finished"


def has_special(path: Path) -> bool:
    """Check whether a path is or contains anything but directories and files."""
    below = (
        Path(folder, name)
        for folder, folders, names in os.walk(path)
        for name in (*folders, *names)
    )
    kinds = (stat.S_IFMT(each.lstat().st_mode) for each in (path, *below))
    return any(kind not in (stat.S_IFDIR, stat.S_IFREG) for kind in kinds)


def set_aside(path: Path, suffix: str) -> None:
    """Rename a checkpoint, replacing the leftover of an earlier failure."""
    aside = path.with_name(f"{path.name}.{suffix}")
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        aside.unlink(missing_ok=True)
    path.rename(aside)


def _files(path: Path) -> dict[str, Path]:
    """Find the files of a checkpoint other than its manifest, by relative path.

    Links are included and not followed.
    """
    found = {
        os.path.relpath(os.path.join(folder, name), path): Path(folder, name)
        for folder, folders, names in os.walk(path)
        for name in (*names, *(f for f in folders if Path(folder, f).is_symlink()))
        if not name.startswith(MANIFEST)
    }
    return dict(sorted(found.items()))


def _hash(path: Path) -> str:
    """SHA-256 of a file.

    Raises:
        OSError: If it cannot be read, or is not a regular file but, say, a link.
    """
    if not stat.S_ISREG(path.lstat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hashes(path: Path) -> dict[str, str]:
    """Compute the manifest of a checkpoint: SHA-256 of its files by relative path."""
    return {name: _hash(file) for name, file in _files(path).items()}


def fault_of(path: Path) -> str | None:
    """Describe the damage of a checkpoint, or return `None` if it is valid."""
    if not path.is_dir() or path.is_symlink():
        return "is not a directory"
    manifest = path / MANIFEST
    if not manifest.exists():
        return UNFINISHED
    try:
        expected, files = read_object(manifest), _files(path)
        if not expected:
            return "has a damaged manifest"
        if other := sorted(expected.keys() ^ files.keys()):
            return (
                f"is damaged ({one_line(other[0])} is missing or not in its manifest)"
            )
        bad = [name for name, file in files.items() if _hash(file) != expected[name]]
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    except ValueError:
        return "has a damaged manifest"
    return f"is damaged ({bad[0]} does not match its sha256)" if bad else None
