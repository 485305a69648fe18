"""Names for every learned optimizer; a new one is one more line here."""

from lopt.base import LearnedOptimizer
from lopt.mlp import PerParameterMLP
from lopt.schedules import ScheduledSGD

OPTIMIZERS: dict[str, type[LearnedOptimizer]] = {
    "PerParameterMLP": PerParameterMLP,
    "ScheduledSGD": ScheduledSGD,
}
