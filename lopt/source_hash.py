"""Hash of the source code of lopt."""

import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

_PACKAGES = ("lopt", "tasks", "meta_train", "evaluation")
_SUFFIXES = (".py", ".cc", ".h")


@functools.cache
def source_hash(packages: Iterable[str] = _PACKAGES) -> str:
    """SHA-256 over the names and contents of all source files of some packages.

    Args:
        packages: Tuple of top-level packages; by default all four.
    """
    root = Path(__file__).parent.parent
    files = [
        path
        for package in packages
        for path in (root / package).rglob("*")
        if path.suffix in _SUFFIXES
    ]
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
