"""Registry of learned optimizers; register a new one by adding it to `OPTIMIZERS`."""

from lopt.adafactor_mlp import AdafactorMLP
from lopt.base import LearnedOptimizer
from lopt.classical import LearnedAdam, LearnedMomentum, LearnedSGD
from lopt.hierarchical import HierarchicalRNN
from lopt.hypernetwork import HyperLSTM
from lopt.learned_muon import LearnedMuon
from lopt.lstm import CoordinateLSTM
from lopt.mlp import PerParameterMLP
from lopt.mup import MuTransfer
from lopt.normalized_mlp import NormalizedMLP
from lopt.schedules import ScheduledSGD

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
