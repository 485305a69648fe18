"""Command line of `lopt show`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from lopt.cli.parse import parse

_IN_A_RUN = "optimizer.safetensors"


@dataclass(frozen=True)
class _Show:
    path: Annotated[Path | None, tyro.conf.Positional] = None
    """Name of a shipped optimizer, file written by `lopt meta-train` or `lopt export`,
    or run directory. By default, list the shipped optimizers."""


def show(arguments: Sequence[str]) -> int:
    """Print the card of an optimizer, or list the shipped ones (`lopt show`)."""
    options = parse(
        _Show,
        arguments,
        prog="lopt show",
        description="Show the card of an optimizer, or list the shipped ones.",
    )
    if options.path is None:
        return _list_shipped()
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from lopt.cli.output import printable
    from lopt.errors import UserError
    from lopt.files.format import read_card
    from lopt.pretrained import resolve

    is_run = options.path.is_dir()
    path = options.path / _IN_A_RUN if is_run else resolve(str(options.path))
    if options.path.is_dir() and not path.is_file():
        raise UserError(
            f"{options.path} must be a run that is over, with a file {_IN_A_RUN}; it "
            f"has none. Try lopt export {options.path} --out {path}."
        )
    rows = _rows(read_card(path), path.stat().st_size)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(Text(printable(name)), Text(printable(value)))
    console = Console()
    console.print(Text(printable(str(path)), style="bold"), soft_wrap=True)
    console.print(table)
    source = path if is_run else options.path
    how = f"lopt.load({str(source)!r}, num_steps=...)"
    console.print(
        Text(printable(f"An optax optimizer in Python: {how}")), soft_wrap=True
    )
    return 0


def _list_shipped() -> int:
    from lopt.cli.output import wrapped
    from lopt.files.format import read_card
    from lopt.pretrained import list_pretrained

    for name in list_pretrained():
        card = read_card(name)
        shortest, longest = card["horizons"]
        text = (
            f"{name}  {card['architecture']}, {card['num_parameters']} parameters, "
            f"meta-trained on {len(card['tasks'])} tasks for runs of {shortest} to "
            f"{longest} steps"
        )
        print(wrapped(text))
    print('\n`lopt show NAME` prints a card; lopt.load("NAME", num_steps=N) loads one.')
    return 0


def _rows(card: Mapping[str, Any], num_bytes: int) -> dict[str, str]:
    """Format a card as rows of a table, by label; `num_bytes` is the file size."""
    rest = dict(card)
    hyperparameters = rest.pop("hyperparameters")
    described = {"type": rest.pop("architecture"), **hyperparameters}
    rows = {
        "optimizer": _short(described),
        "parameters": f"{rest.pop('num_parameters'):,}",
    }
    tasks = rest.pop("tasks", None)
    if tasks is not None:
        tasks = tasks if isinstance(tasks, list) else [tasks]
        rows["trained on"] = "\n".join(map(_short, tasks)) or "-"
    if (horizons := rest.pop("horizons", None)) is not None:
        rows["for runs of"] = f"{_range(horizons)} steps"
    ends = {
        "versions": _pairs(rest.pop("versions", {})),
        "format": _short(rest.pop("format")),
        "checksum": f"sha256 {_short(rest.pop('sha256'))[:12]}",
        "size": f"{num_bytes:,} bytes",
    }
    names = {"num_outer_steps": "outer steps"}
    others = {names.get(k, k.replace("_", " ")): _short(v) for k, v in rest.items()}
    return rows | others | ends


def _short(value: Any) -> str:
    """Format a `to_dict` description as a Python expression: ``MLP(width=32)``."""
    if isinstance(value, Mapping):
        fields = _pairs({k: v for k, v in value.items() if k != "type"}, "=")
        return f"{value['type']}({fields})" if "type" in value else f"{{{fields}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_short, value))}]"
    return "none" if value is None else str(value)


def _pairs(value: Any, between: str = " ") -> str:
    if not isinstance(value, Mapping):
        return _short(value)
    return ", ".join(f"{k}{between}{_short(v)}" for k, v in value.items())


def _range(horizons: Any) -> str:
    if not isinstance(horizons, list):
        return _short(horizons)
    ends = dict.fromkeys(map(_short, horizons))  # drops duplicates, keeps the order
    return " to ".join(ends)
