"""What commands that take a preset have in common: `lopt COMMAND PRESET [--flags]`."""

from collections.abc import Sequence
from typing import TypeVar

import tyro

from lopt.errors import find
from meta_train.presets import PRESETS, listing

Options = TypeVar("Options")


def parse(
    command: str, arguments: Sequence[str], options: type[Options], description: str
) -> tuple[str, Options]:
    """Returns the preset's name and the options, or ends the command with its help."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: lopt {command} PRESET [--flags]\n\npresets:\n{listing()}")
        print(f"\n`lopt {command} PRESET --help` lists the flags.")
        raise SystemExit(0 if arguments else 2)
    name, *flags = arguments
    preset = find("preset", name, PRESETS)
    prog = f"lopt {command} {name}"
    chosen = tyro.cli(options, args=flags, prog=prog, description=description)
    preset.check_prepared(flags)
    return name, chosen
