"""Command line of `lopt export`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lopt.cli.parse import parse


@dataclass(frozen=True)
class _Export:
    run_dir: Annotated[Path, tyro.conf.Positional]
    """Run directory of `lopt meta-train`."""
    out: Path
    """Output file, ending in .safetensors."""
    allow_untrained: tyro.conf.FlagCreatePairsOff[bool] = False
    """Export theta even if it still has its initial value."""


def export(arguments: Sequence[str]) -> int:
    """Run `lopt export RUN_DIR --out FILE`."""
    options = parse(
        _Export,
        arguments,
        prog="lopt export",
        description="Export the latest checkpoint of a run as one optax optimizer.",
    )
    from meta_train.runtime.export import export_run

    path = export_run(
        options.run_dir, options.out, allow_untrained=options.allow_untrained
    )
    print(f"Exported to {path}.")
    return 0
