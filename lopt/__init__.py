"""Learned optimizers: families of optax optimizers parameterized by `theta`."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lopt.adafactor_mlp import AdafactorMLP
    from lopt.base import LearnedOptimizer
    from lopt.classical import LearnedAdam, LearnedMomentum, LearnedSGD
    from lopt.errors import UserError
    from lopt.export import load, load_theta, read_card, save
    from lopt.hierarchical import HierarchicalRNN
    from lopt.hypernetwork import HyperLSTM
    from lopt.learned_muon import LearnedMuon
    from lopt.lstm import CoordinateLSTM
    from lopt.mlp import PerParameterMLP
    from lopt.mup import MuTransfer
    from lopt.normalized_mlp import NormalizedMLP
    from lopt.pretrained import list_pretrained
    from lopt.schedules import ScheduledSGD
    from lopt.tensors import PerTensorOptimizer, TensorOptimizer

__all__ = [
    "AdafactorMLP",
    "CoordinateLSTM",
    "HierarchicalRNN",
    "HyperLSTM",
    "LearnedAdam",
    "LearnedMomentum",
    "LearnedMuon",
    "LearnedOptimizer",
    "LearnedSGD",
    "MuTransfer",
    "NormalizedMLP",
    "PerParameterMLP",
    "PerTensorOptimizer",
    "ScheduledSGD",
    "TensorOptimizer",
    "UserError",
    "list_pretrained",
    "load",
    "load_theta",
    "read_card",
    "save",
]

# Names are imported on first access, so that `lopt --help` does not import jax.
_HOMES = {
    "AdafactorMLP": "lopt.adafactor_mlp",
    "CoordinateLSTM": "lopt.lstm",
    "HierarchicalRNN": "lopt.hierarchical",
    "HyperLSTM": "lopt.hypernetwork",
    "LearnedAdam": "lopt.classical",
    "LearnedMomentum": "lopt.classical",
    "LearnedOptimizer": "lopt.base",
    "LearnedSGD": "lopt.classical",
    "MuTransfer": "lopt.mup",
    "NormalizedMLP": "lopt.normalized_mlp",
    "PerParameterMLP": "lopt.mlp",
    "LearnedMuon": "lopt.learned_muon",
    "PerTensorOptimizer": "lopt.tensors",
    "ScheduledSGD": "lopt.schedules",
    "TensorOptimizer": "lopt.tensors",
    "UserError": "lopt.errors",
    "list_pretrained": "lopt.pretrained",
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
