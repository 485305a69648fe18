"""Command line of `lopt plot`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class _Plot:
    run_dir: Annotated[Path, tyro.conf.Positional]
    """Run directory of `lopt meta-train`. The run may still be active."""
    out: Path | None = None
    """Output directory of the figure; the run directory by default."""
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
    """Run `lopt plot RUN_DIR [--out DIR] [--surface]`."""
    options = tyro.cli(
        _Plot,
        args=arguments,
        prog="lopt plot",
        description=(
            "Draw meta-loss, gradient norm, signal-to-noise, divergence and the "
            "learned step sizes of a run."
        ),
    )
    from meta_train.config.config import read_config
    from meta_train.runtime.export import restore
    from meta_train.runtime.plot import draw, learned_steps
    from meta_train.runtime.plot_surface import draw_surface
    from meta_train.runtime.progress import ProgressReport
    from meta_train.runtime.run_directory import check_writable

    config = read_config(options.run_dir)
    out = options.out or options.run_dir
    check_writable(out, flag="--out")
    with ProgressReport("drawing", 2) as progress:
        progress.note("running the learned optimizer")
        trainer = config.make_trainer()
        before = trainer.init(trainer.load(), config.seed)
        thetas = {"now": restore(config).theta, "before training": before.theta}
        sizes = learned_steps(config, thetas)
        progress.advance("ran it")
        path = draw(config, out, sizes)
        progress.advance("drew it")
    progress.say(f"Figure: {path}")
    if options.surface:
        path = draw_surface(config, out, options.surface_points)
        progress.say(f"Surface: {path}")
    return 0
