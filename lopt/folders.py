"""Where things are kept between commands."""

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Returns a folder of the user's cache; it need not be there."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "lopt" / name
