"""Shared parsing of commands on a configuration: `lopt COMMAND [PRESET] [--flags]`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from lopt.cli.parse import parse
from meta_train.cli.components import parse_components

if TYPE_CHECKING:
    from meta_train.config.config import MetaTrainConfig

Options = TypeVar("Options")


def parse_preset(
    command: str, arguments: Sequence[str], options: type[Options], description: str
) -> tuple[str, "MetaTrainConfig", Options]:
    """Parse a preset, other parts by name and the flags of a command.

    Args:
        command: Name of the command.
        arguments: Command-line arguments after the name of the command.
        options: Dataclass that defines the flags.
        description: Description in the help of the command.

    Returns:
        Name of the preset or of the first task, composed configuration and parsed
        options.

    Raises:
        SystemExit: After printing the usage, if neither a preset nor tasks are given.
    """
    components, flags = parse_components(command, arguments)
    prog = f"lopt {command} {components.preset or ''}".strip()
    chosen = parse(options, flags, prog=prog, description=description)
    return components.name, components.config(), chosen
