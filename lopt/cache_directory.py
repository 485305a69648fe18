"""Cache directories."""

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Path of a subdirectory of lopt's cache; it may not exist yet.

    The cache is ``$XDG_CACHE_HOME/lopt``, or ``~/.cache/lopt`` if the variable is unset
    or empty.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "lopt" / name
