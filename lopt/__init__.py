"""Learned optimizers: families of optax optimizers parameterized by `theta`."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lopt.adapter import PerTensorOptimizer, TensorOptimizer
    from lopt.base import LearnedOptimizer
    from lopt.errors import UserError
    from lopt.files.format import load_theta, read_card, save
    from lopt.files.load import load
    from lopt.optimizers.adafactor_mlp import AdafactorMLP
    from lopt.optimizers.classical import LearnedAdam, LearnedMomentum, LearnedSGD
    from lopt.optimizers.coordinate_lstm import CoordinateLSTM
    from lopt.optimizers.hierarchical_rnn import HierarchicalRNN
    from lopt.optimizers.hyper_lstm import HyperLSTM
    from lopt.optimizers.learned_muon import LearnedMuon
    from lopt.optimizers.mu_transfer import MuTransfer
    from lopt.optimizers.normalized_mlp import NormalizedMLP
    from lopt.optimizers.per_parameter_mlp import PerParameterMLP
    from lopt.optimizers.scheduled_sgd import ScheduledSGD
    from lopt.pretrained import list_pretrained

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
    "AdafactorMLP": "lopt.optimizers.adafactor_mlp",
    "CoordinateLSTM": "lopt.optimizers.coordinate_lstm",
    "HierarchicalRNN": "lopt.optimizers.hierarchical_rnn",
    "HyperLSTM": "lopt.optimizers.hyper_lstm",
    "LearnedAdam": "lopt.optimizers.classical",
    "LearnedMomentum": "lopt.optimizers.classical",
    "LearnedOptimizer": "lopt.base",
    "LearnedSGD": "lopt.optimizers.classical",
    "MuTransfer": "lopt.optimizers.mu_transfer",
    "NormalizedMLP": "lopt.optimizers.normalized_mlp",
    "PerParameterMLP": "lopt.optimizers.per_parameter_mlp",
    "LearnedMuon": "lopt.optimizers.learned_muon",
    "PerTensorOptimizer": "lopt.adapter",
    "ScheduledSGD": "lopt.optimizers.scheduled_sgd",
    "TensorOptimizer": "lopt.adapter",
    "UserError": "lopt.errors",
    "list_pretrained": "lopt.pretrained",
    "load": "lopt.files.load",
    "load_theta": "lopt.files.format",
    "read_card": "lopt.files.format",
    "save": "lopt.files.format",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lopt' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
