"""Command line of `lopt import`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lopt.cli.parse import parse


@dataclass(frozen=True)
class _Import:
    format: Annotated[str, tyro.conf.Positional]
    """Format of the file: celo, celo-adam, celo2, celo2-base, velo (any size),
    velo-4000 (the trained VeLO), adafac-mlp or small-fc-lopt."""
    path: Annotated[Path, tyro.conf.Positional]
    """Msgpack file that Flax wrote, such as `theta.state`."""
    out: Path
    """File to write, such as celo.safetensors."""
    horizons: tuple[int, int] | None = None
    """Shortest and longest horizon of meta-training, which the file does not contain.
    If given, `lopt.load` warns of others."""
    learning_rate: float | None = None
    """Learning rate (Celo2 only)."""
    weight_decay: float | None = None
    """Decoupled weight decay, multiplied by the learning rate (Celo2 only)."""
    adam_names: tuple[str, ...] | None = None
    """Patterns of the paths of tensors that Adam updates, such as '*embed*' (Celo2
    only). Vectors are updated by Adam in any case, except with celo2-base."""


def import_released(arguments: Sequence[str]) -> int:
    """Import an optimizer that another project has released (`lopt import`)."""
    options = parse(
        _Import,
        arguments,
        prog="lopt import",
        description="Import an optimizer that another project has released.",
    )
    from lopt.cli.output import printable
    from lopt.files.format import read_card
    from lopt.files.released import import_theta

    names = ("learning_rate", "weight_decay", "adam_names")
    fields = {name: getattr(options, name) for name in names}
    given = {name: value for name, value in fields.items() if value is not None}
    import_theta(
        options.format, options.path, options.out, horizons=options.horizons, **given
    )
    card = read_card(options.out)
    print(
        printable(
            f"{options.out}: {card['architecture']}, {card['num_parameters']:,} "
            f"parameters. `lopt show {options.out}` prints its card."
        )
    )
    return 0
