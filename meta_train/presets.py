"""Names that the command line offers: runs to start from, what theta is to lower.

Nothing here is slow to import: `preset_configs.py` has what they are made of.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from tasks import prepared

Measure: TypeAlias = Literal["train-loss", "validation-loss", "validation-error"]


class Preset(NamedTuple):
    """A run to start from.

    Attributes:
        description: In one line.
        dataset: What must be prepared first.
    """

    description: str
    dataset: str | None = None

    def check_prepared(self, flags: Sequence[str]) -> None:
        """Says at once that data is missing, not when all else has been imported."""
        if self.dataset and not {"-h", "--help"}.intersection(flags):
            prepared.check_prepared(self.dataset)


PRESETS: dict[str, Preset] = {
    "general": Preset(
        "Learn an optimizer for any task on a mixture of ten small ones; hours.",
    ),
    "demo": Preset(
        "The same on three of them; minutes on a laptop.",
    ),
    "digits-mlp": Preset(
        "Learn a per-parameter MLP on a small digits classifier; minutes on a laptop.",
    ),
    "mnist-mlp": Preset(
        "Learn a per-parameter MLP on MNIST, prepared first; hours on a laptop.",
        "mnist",
    ),
    "tables-mlp": Preset(
        "The same optimizer on two tasks at once, wine and diabetes; minutes.",
    ),
    "swimmer": Preset(
        "A linear policy for MuJoCo's Swimmer, as in the PES paper; extra `control`.",
    ),
    "quadratic-schedule": Preset(
        "Learn a learning-rate schedule on a noisy quadratic; seconds on a laptop.",
    ),
    "toy-regression": Preset(
        "The PES paper's toy 2D regression: a schedule past many local minima.",
    ),
    "influence-balancing": Preset(
        "The PES paper's influence balancing: short windows have the wrong sign.",
    ),
}


def listing() -> str:
    """Returns a line for each preset."""
    return "\n".join(f"  {name:<22}{p.description}" for name, p in PRESETS.items())
