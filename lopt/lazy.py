"""Exports of a package that are imported on first access."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def attach(
    package: str, exports: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Create `__getattr__`, `__dir__` and `__all__` of a package.

    Importing the package is then immediate: `lopt --help` must not import JAX.

    Args:
        package: Name of the package, for error messages.
        exports: Exported names by the module that defines them.
    """
    homes = {name: module for module, names in exports.items() for name in names}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return get, lambda: sorted(homes), sorted(homes)
