"""Command line of `lopt plot`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lopt.errors import UserError


@dataclass(frozen=True)
class _Plot:
    run_dirs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run directories of `lopt meta-train`. Runs may still be active. Several are drawn
    in one figure."""
    out: Path | None = None
    """Output directory of the figure; the first run directory by default."""


def plot(arguments: Sequence[str]) -> int:
    """Run `lopt plot RUN_DIR [RUN_DIR ...] [--out DIR]`."""
    options = tyro.cli(
        _Plot,
        args=arguments,
        prog="lopt plot",
        description=(
            "Draw meta-loss, gradient norm, signal-to-noise, divergence and the "
            "learned step sizes of a run, or the losses of several runs."
        ),
    )
    if not options.run_dirs:
        raise UserError(
            "`lopt plot` must be given a run directory; got none. Try lopt runs, which "
            "lists them."
        )
    from meta_train.config.config import read_config
    from meta_train.runtime.export import restore
    from meta_train.runtime.overlay import draw_runs
    from meta_train.runtime.plot import draw, learned_steps
    from meta_train.runtime.progress import ProgressReport
    from meta_train.runtime.run_directory import check_writable
    from meta_train.runtime.start import start_theta

    out = options.out or options.run_dirs[0]
    if len(options.run_dirs) > 1:
        for run_dir in options.run_dirs:
            read_config(run_dir)
        check_writable(out, flag="--out")
        print(f"Figure: {draw_runs(options.run_dirs, out / 'runs.png')}")
        return 0
    config = read_config(options.run_dirs[0])
    check_writable(out, flag="--out")
    with ProgressReport("drawing", 2) as progress:
        progress.note("running the learned optimizer")
        thetas = {
            "now": restore(config).theta,
            "before training": start_theta(config),
        }
        sizes = learned_steps(config, thetas)
        progress.advance("ran it")
        path = draw(config, out, sizes)
        progress.advance("drew it")
    progress.say(f"Figure: {path}")
    return 0
