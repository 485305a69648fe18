"""Names and descriptions of the presets.

This module does not import JAX, so that commands start quickly. The configurations are
in `preset_configs.py`.
"""

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from tasks import prepared


class Preset(NamedTuple):
    """Description of a preset.

    Attributes:
        description: One-line description for the command line.
        dataset: Name of a dataset to prepare beforehand; `None` if there is none.
    """

    description: str
    dataset: str | None = None

    def check_prepared(self, flags: Sequence[str]) -> None:
        """Validate that the dataset is prepared, unless `flags` ask for help.

        This check runs before the slow imports, so that missing data is reported at
        once.
        """
        if self.dataset and not {"-h", "--help"}.intersection(flags):
            prepared.check_prepared(self.dataset)


PRESETS: dict[str, Preset] = {
    "general": Preset(
        "Learn an optimizer for any task on a mixture of twelve small ones; hours.",
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
    """Format all presets for 80 columns."""
    indent = " " * 24
    return "\n".join(
        textwrap.fill(
            p.description,
            80,
            initial_indent=f"  {name}".ljust(len(indent)),
            subsequent_indent=indent,
        )
        for name, p in PRESETS.items()
    )
