"""Registry of learned optimizers.

To register one, add it to `OPTIMIZERS`, or decorate its class with
`register_optimizer` at run time.
"""

from typing import TypeVar

from lopt.base import LearnedOptimizer
from lopt.errors import UserError
from lopt.optimizers.adafactor_mlp import AdafactorMLP
from lopt.optimizers.celo import Celo
from lopt.optimizers.celo2 import Celo2
from lopt.optimizers.celo_adam import CeloAdam
from lopt.optimizers.classical import LearnedAdam, LearnedMomentum, LearnedSGD
from lopt.optimizers.coordinate_lstm import CoordinateLSTM
from lopt.optimizers.hierarchical_rnn import HierarchicalRNN
from lopt.optimizers.hyper_lstm import HyperLSTM
from lopt.optimizers.learned_muon import LearnedMuon
from lopt.optimizers.mu_transfer import MuTransfer
from lopt.optimizers.normalized_mlp import NormalizedMLP
from lopt.optimizers.per_parameter_mlp import PerParameterMLP
from lopt.optimizers.scheduled_sgd import ScheduledSGD
from lopt.optimizers.velo import VeLO

Kind = TypeVar("Kind", bound=type)

OPTIMIZERS: dict[str, type[LearnedOptimizer]] = {
    kind.__name__: kind
    for kind in (
        PerParameterMLP,
        AdafactorMLP,
        NormalizedMLP,
        LearnedMuon,
        CoordinateLSTM,
        HierarchicalRNN,
        HyperLSTM,
        VeLO,
        Celo,
        CeloAdam,
        Celo2,
        LearnedSGD,
        LearnedMomentum,
        LearnedAdam,
        ScheduledSGD,
        MuTransfer,
    )
}


def register_optimizer(kind: Kind) -> Kind:
    """Register a learned optimizer under its class name, as a class decorator.

    Exported files, run directories and `--optimizer` then accept it in this process.

    Raises:
        UserError: If another class is registered under the same name.
    """
    return add_class(OPTIMIZERS, kind)


def add_class(registry: dict[str, type], kind: Kind) -> Kind:
    """Add a class to a registry under its class name.

    Raises:
        UserError: If a class of another module has the same name.
    """
    known = registry.get(kind.__name__, kind)
    # A notebook cell that is run again defines the same class anew.
    if known.__module__ != kind.__module__:
        raise UserError(
            "a registered class must have a name of its own; got "
            f"{kind.__name__}, which is {known.__module__}.{kind.__name__}. "
            f"Try My{kind.__name__}."
        )
    registry[kind.__name__] = kind
    return kind
