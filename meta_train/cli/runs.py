"""Command line of `lopt runs`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from lopt.cli.output import printable
from lopt.cli.parse import parse
from lopt.errors import UserError
from lopt.files.json_file import read_object


@dataclass(frozen=True)
class _Runs:
    directory: Annotated[Path, tyro.conf.Positional] = Path("runs")
    """Directory to search for run directories."""
    json: bool = False
    """Print JSON instead of a table."""


def runs(arguments: Sequence[str]) -> int:
    """Run `lopt runs [DIR]`."""
    options = parse(
        _Runs,
        arguments,
        prog="lopt runs",
        description="List meta-training runs with their state and best meta-loss.",
    )
    if not options.directory.is_dir():
        raise UserError(
            f"{options.directory} must be a directory with runs; there is none. "
            "Try lopt runs DIR."
        )
    configs = sorted(options.directory.rglob("config.json"))
    found = [_summary(path.parent) for path in configs if _is_run(path)]
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    table = Table("run", "state", "steps", "meta-loss", "best", "systems", box=None)
    for row in found:
        table.add_row(*(printable(str(value)) for value in row.values()))
    Console().print(
        table if found else f"No runs in {printable(str(options.directory))}."
    )
    return 0


def _is_run(config: Path) -> bool:
    """Check for the configuration of a run, which has checkpoints if it is damaged."""
    try:
        return read_object(config).get("type") == "MetaTrainConfig"
    except (OSError, ValueError):
        return (config.parent / "checkpoints").is_dir()


def _summary(run_dir: Path) -> dict[str, Any]:
    """State, progress and losses of a run, without loading its classes."""
    from meta_train.runtime.metrics_file import METRICS_FILE, read_metrics
    from meta_train.runtime.run_directory import is_locked

    try:
        config: Mapping[str, Any] = read_object(run_dir / "config.json")
    except (OSError, ValueError):
        config = {}
    lines = read_metrics(run_dir / METRICS_FILE)
    losses = [x["meta_loss"] for x in lines if x.get("meta_loss") is not None]
    step, total = lines[-1]["step"] if lines else 0, config.get("num_outer_steps")
    state = "finished" if step == total else "stopped"
    systems = config.get("systems")
    return {
        "run": str(run_dir),
        "state": "running" if is_locked(run_dir) else state,
        "steps": f"{step}/{total}",
        "meta-loss": f"{losses[-1]:.4g}" if losses else "-",
        "best": f"{min(losses):.4g}" if losses else "-",
        "systems": len(systems) if isinstance(systems, list) else "?",
    }
