"""Flags shared by the commands that take a preset: its parts, selected by name.

The flags of a configuration depend on its parts, so these flags are parsed first.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from lopt.errors import UserError, lookup
from meta_train.config.presets import PRESETS, listing
from meta_train.core.measures import Measure

if TYPE_CHECKING:
    from meta_train.config.config import MetaTrainConfig

USAGE = """[PRESET] [--tasks NAME [NAME ...]] [--optimizer NAME]
    [--estimator NAME] [--outer-optimizer NAME] [--augment NAME [NAME ...]]
    [--measure train-loss|validation-loss|validation-error]"""
_HELP = """PRESET or --tasks is required. `lopt tasks` lists the names. FILE.py:CLASS is
a class in a file of yours.

presets:"""


class Components(NamedTuple):
    """Preset and parts of a configuration, by name.

    Attributes:
        name: Name of the preset, or of the first task without a preset.
        preset: Name of the preset; `None` if there is none.
        parts: Keyword arguments of `compose`.
    """

    name: str
    preset: str | None
    parts: dict[str, Any]

    @property
    def description(self) -> str:
        """Description for the help of a command."""
        return PRESETS[self.preset].description if self.preset else "No preset."

    def config(self) -> "MetaTrainConfig":
        """Compose the configuration; classes of the user's files are registered."""
        from meta_train.config.own_code import class_name, imported
        from meta_train.config.preset_configs import CONFIGS, compose, without_preset

        def resolved(value: Any) -> Any:
            if isinstance(value, str):
                return class_name(value)
            return value and [class_name(each) for each in value]

        parts = {key: resolved(value) for key, value in self.parts.items()}
        tasks = parts["tasks"] or ()
        base = CONFIGS[self.preset] if self.preset else without_preset(tasks)
        return dataclasses.replace(compose(base, **parts), sources=imported())


def parse_components(
    command: str, arguments: Sequence[str]
) -> tuple[Components, list[str]]:
    """Split arguments into the parts of a configuration and further flags.

    Data of a preset that is missing is reported here, before slow imports.

    Args:
        command: Name of the command, for usage and errors.
        arguments: Command-line arguments after the name of the command.

    Raises:
        SystemExit: After printing the usage, if neither a preset nor tasks are given.
    """
    parser = argparse.ArgumentParser(
        prog=f"lopt {command}", add_help=False, allow_abbrev=False
    )
    parser.add_argument("--estimator")
    parser.add_argument("--optimizer")
    parser.add_argument("--outer-optimizer")
    parser.add_argument("--tasks", nargs="+", default=())
    parser.add_argument("--augment", nargs="+", default=())
    parser.add_argument("--measure", choices=get_args(Measure))
    words = list(arguments)
    name = words.pop(0) if words and not words[0].startswith("-") else None
    if name:
        lookup("preset", name, PRESETS)
    chosen, flags = parser.parse_known_args(words)
    if not name and not chosen.tasks:
        is_help = bool({"-h", "--help"}.intersection(flags))
        print(f"usage: lopt {command} {USAGE}\n    [--flags]\n\n{_HELP}\n{listing()}")
        print(f"\n`lopt {command} PRESET --help` lists the flags.")
        raise SystemExit(0 if is_help else 2)
    has_systems = chosen.tasks or any(flag.startswith("--systems") for flag in flags)
    if name and not has_systems:
        PRESETS[name].check_prepared(flags)
    label = name or _label(chosen.tasks[0])
    return Components(label, name, vars(chosen)), flags


def _label(task: str) -> str:
    """Name of a run on a task: its name, or the class of ``FILE.py:CLASS``."""
    label = Path(task).name.rpartition(":")[2]
    if not label:
        raise UserError(f"--tasks must be followed by names; got {task!r}.")
    return label
