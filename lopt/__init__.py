"""Learned optimizers: families of optax optimizers parameterized by `theta`."""

from typing import TYPE_CHECKING

from lopt import lazy

if TYPE_CHECKING:
    from lopt.adapter import (
        LeafInputs as LeafInputs,
        PerTensorOptimizer as PerTensorOptimizer,
        StepInfo as StepInfo,
        TensorOptimizer as TensorOptimizer,
    )
    from lopt.base import LearnedOptimizer as LearnedOptimizer
    from lopt.errors import UserError as UserError
    from lopt.files.format import (
        load_theta as load_theta,
        read_card as read_card,
        save as save,
    )
    from lopt.files.load import load as load
    from lopt.files.released import import_theta as import_theta
    from lopt.optimizers.adafactor_mlp import AdafactorMLP as AdafactorMLP
    from lopt.optimizers.celo import Celo as Celo
    from lopt.optimizers.celo2 import Celo2 as Celo2
    from lopt.optimizers.celo_adam import CeloAdam as CeloAdam
    from lopt.optimizers.classical import (
        LearnedAdam as LearnedAdam,
        LearnedMomentum as LearnedMomentum,
        LearnedSGD as LearnedSGD,
    )
    from lopt.optimizers.coordinate_lstm import CoordinateLSTM as CoordinateLSTM
    from lopt.optimizers.hierarchical_rnn import HierarchicalRNN as HierarchicalRNN
    from lopt.optimizers.hyper_lstm import HyperLSTM as HyperLSTM
    from lopt.optimizers.learned_muon import LearnedMuon as LearnedMuon
    from lopt.optimizers.mu_transfer import MuTransfer as MuTransfer
    from lopt.optimizers.normalized_mlp import NormalizedMLP as NormalizedMLP
    from lopt.optimizers.per_parameter_mlp import PerParameterMLP as PerParameterMLP
    from lopt.optimizers.scheduled_sgd import ScheduledSGD as ScheduledSGD
    from lopt.optimizers.velo import VeLO as VeLO
    from lopt.pretrained import list_pretrained as list_pretrained
    from lopt.registry import (
        OPTIMIZERS as OPTIMIZERS,
        register_optimizer as register_optimizer,
    )

_EXPORTS = {
    "lopt.adapter": ["LeafInputs", "PerTensorOptimizer", "StepInfo", "TensorOptimizer"],
    "lopt.base": ["LearnedOptimizer"],
    "lopt.errors": ["UserError"],
    "lopt.files.format": ["load_theta", "read_card", "save"],
    "lopt.files.load": ["load"],
    "lopt.files.released": ["import_theta"],
    "lopt.optimizers.adafactor_mlp": ["AdafactorMLP"],
    "lopt.optimizers.celo": ["Celo"],
    "lopt.optimizers.celo2": ["Celo2"],
    "lopt.optimizers.celo_adam": ["CeloAdam"],
    "lopt.optimizers.classical": ["LearnedAdam", "LearnedMomentum", "LearnedSGD"],
    "lopt.optimizers.coordinate_lstm": ["CoordinateLSTM"],
    "lopt.optimizers.hierarchical_rnn": ["HierarchicalRNN"],
    "lopt.optimizers.hyper_lstm": ["HyperLSTM"],
    "lopt.optimizers.learned_muon": ["LearnedMuon"],
    "lopt.optimizers.mu_transfer": ["MuTransfer"],
    "lopt.optimizers.normalized_mlp": ["NormalizedMLP"],
    "lopt.optimizers.per_parameter_mlp": ["PerParameterMLP"],
    "lopt.optimizers.scheduled_sgd": ["ScheduledSGD"],
    "lopt.optimizers.velo": ["VeLO"],
    "lopt.pretrained": ["list_pretrained"],
    "lopt.registry": ["OPTIMIZERS", "register_optimizer"],
}
__getattr__, __dir__, __all__ = lazy.attach(__name__, _EXPORTS)
