"""Command line of `lopt plot`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lopt.cli.parse import parse
from lopt.errors import UserError


@dataclass(frozen=True)
class _Plot:
    run_dirs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run directories of `lopt meta-train`. Runs may still be active. Several are drawn
    in one figure."""
    out: Path | None = None
    """Output directory of the figure; the first run directory by default."""
    surface: bool = False
    """Also draw the meta-objective around the trajectory of a theta of one or two
    numbers."""
    surface_points: int = 31
    """Points of the surface along each number of theta."""

    def __post_init__(self):
        if not 2 <= self.surface_points <= 1_000:
            raise ValueError(
                "`surface_points` must lie between 2 and 1000; got "
                f"{self.surface_points}. Try 31."
            )


def plot(arguments: Sequence[str]) -> int:
    """Run `lopt plot RUN_DIR [RUN_DIR ...] [--out DIR] [--surface]`."""
    options = parse(
        _Plot,
        arguments,
        prog="lopt plot",
        description="Plot the metrics of runs, and the learned step sizes of one run.",
    )
    if not options.run_dirs:
        raise UserError(
            "`lopt plot` must be given a run directory; got none. Try lopt runs, which "
            "lists them."
        )
    from meta_train.config.config_file import read_config
    from meta_train.runtime.export import restore
    from meta_train.runtime.overlay import draw_runs
    from meta_train.runtime.plot import draw, learned_steps
    from meta_train.runtime.plot_surface import draw_surface
    from meta_train.runtime.progress import ProgressReport
    from meta_train.runtime.run_directory import check_writable
    from meta_train.runtime.start import start_theta

    configs = [read_config(run_dir) for run_dir in options.run_dirs]
    config = configs[0]
    out = options.out or config.run_dir
    check_writable(out, flag="--out")
    if len(configs) > 1:
        print(f"Figure: {draw_runs(options.run_dirs, out / 'runs.png')}")
        return 0
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
    if options.surface:
        path = draw_surface(config, out, options.surface_points)
        progress.say(f"Surface: {path}")
    return 0
