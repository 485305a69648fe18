"""Shared parsing of commands with a preset: `lopt COMMAND PRESET [--flags]`."""

from collections.abc import Sequence
from typing import TypeVar

import tyro

from lopt.errors import lookup
from meta_train.config.presets import PRESETS, listing

Options = TypeVar("Options")


def parse_preset(
    command: str, arguments: Sequence[str], options: type[Options], description: str
) -> tuple[str, Options]:
    """Parse the name of a preset and the flags of a command.

    Args:
        command: Name of the command.
        arguments: Command-line arguments after the name of the command.
        options: Dataclass that defines the flags.
        description: Description in the help of the command.

    Returns:
        Name of the preset and parsed options.

    Raises:
        SystemExit: After printing the usage, if no preset or ``--help`` is given.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: lopt {command} PRESET [--flags]\n\npresets:\n{listing()}")
        print(f"\n`lopt {command} PRESET --help` lists the flags.")
        raise SystemExit(0 if arguments else 2)
    name, *flags = arguments
    preset = lookup("preset", name, PRESETS)
    prog = f"lopt {command} {name}"
    chosen = tyro.cli(options, args=flags, prog=prog, description=description)
    preset.check_prepared(flags)
    return name, chosen
