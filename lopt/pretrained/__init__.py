"""Pretrained optimizers shipped with the package."""

import difflib
from pathlib import Path

from lopt.errors import UserError

_SUFFIX = ".safetensors"


def list_pretrained() -> dict[str, Path]:
    """Map the names of shipped optimizers, as accepted by `lopt.load`, to files."""
    files = sorted(Path(__file__).parent.glob(f"*{_SUFFIX}"))
    return {file.name.removesuffix(_SUFFIX): file for file in files}


def resolve(path_or_name: str | Path) -> Path:
    """Resolve the name of a shipped optimizer, or a path, to a path.

    A string without a directory or a suffix is a name, unless such a path exists.

    Raises:
        UserError: If no shipped optimizer has that name.
    """
    name, path = str(path_or_name), Path(path_or_name)
    is_name = isinstance(path_or_name, str) and path.name == name and not path.suffix
    if not is_name or path.exists():
        return path
    shipped = list_pretrained()
    if name in shipped:
        return shipped[name]
    nearest = difflib.get_close_matches(name, shipped, n=1, cutoff=0.5)
    hint = f"Did you mean {nearest[0]!r}? " if nearest else ""
    raise UserError(
        f"an optimizer must be the name of a shipped one or a file; got {name!r}. "
        f"{hint}Shipped: {', '.join(shipped) or 'none'}."
    )
