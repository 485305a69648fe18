"""Registry of learned optimizers; register a new one by adding it to `OPTIMIZERS`."""

from lopt.base import LearnedOptimizer
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

OPTIMIZERS: dict[str, type[LearnedOptimizer]] = {
    "PerParameterMLP": PerParameterMLP,
    "AdafactorMLP": AdafactorMLP,
    "NormalizedMLP": NormalizedMLP,
    "LearnedMuon": LearnedMuon,
    "CoordinateLSTM": CoordinateLSTM,
    "HierarchicalRNN": HierarchicalRNN,
    "HyperLSTM": HyperLSTM,
    "LearnedSGD": LearnedSGD,
    "LearnedMomentum": LearnedMomentum,
    "LearnedAdam": LearnedAdam,
    "ScheduledSGD": ScheduledSGD,
    "MuTransfer": MuTransfer,
}
