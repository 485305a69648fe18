"""WHO trains: learned optimizers, families of optax optimizers indexed by `theta`."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lopt.base import LearnedOptimizer
    from lopt.errors import UserError
    from lopt.export import load, load_theta, read_card, save
    from lopt.mlp import PerParameterMLP
    from lopt.schedules import ScheduledSGD

__all__ = [
    "LearnedOptimizer",
    "PerParameterMLP",
    "ScheduledSGD",
    "UserError",
    "load",
    "load_theta",
    "read_card",
    "save",
]

# Imported when first used, so that `lopt --help` does not wait for jax.
_HOMES = {
    "LearnedOptimizer": "lopt.base",
    "PerParameterMLP": "lopt.mlp",
    "ScheduledSGD": "lopt.schedules",
    "UserError": "lopt.errors",
    "load": "lopt.export",
    "load_theta": "lopt.export",
    "read_card": "lopt.export",
    "save": "lopt.export",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lopt' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
