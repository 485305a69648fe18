"""Command-line entry point of `lopt tune`: black-box tuners against meta-training."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from lopt.errors import UserError, lookup
from meta_train.cli.preset import parse_preset

SCHEMA = 1


@dataclass(frozen=True)
class _Tune:
    tuners: tuple[str, ...] = ()
    """Tuners: random, tpe, gp, halving, hyperband, pbt; all by default."""
    num_episodes: int = 200
    """Budget of each search: inner steps, in units of whole episodes."""
    num_repeats: int = 3
    """Number of searches by each tuner, with different seeds."""
    num_runs: int = 16
    """Number of new episodes for evaluating each theta that was found."""
    radius: float = 5.0
    """Half the width of the search box around the initial theta, in units of theta."""
    seed: int = 0
    """Random seed of all searches."""
    out: Path | None = None
    """Output directory for the figure and results; runs/tune/PRESET by default."""

    def __post_init__(self):
        if min(self.num_episodes, self.num_repeats, self.num_runs) < 1:
            raise UserError(
                "`num_episodes`, `num_repeats` and `num_runs` must be at least 1; got "
                f"{self.num_episodes}, {self.num_repeats} and {self.num_runs}."
            )


def tune(arguments: Sequence[str]) -> int:
    """Run `lopt tune PRESET [--tuners NAME ...] [--num-episodes N]`."""
    name, config, options = parse_preset(
        "tune",
        arguments,
        _Tune,
        "Search for the theta of a preset by its losses, and by meta-training.\n\n"
        "Both take equal numbers of inner steps. The extra `tuners` brings Optuna.",
    )
    import jax

    from evaluation.tuners.episodes import OuterProblem
    from evaluation.tuners.judge import judge
    from evaluation.tuners.tuners import TUNERS, MetaTraining
    from meta_train.runtime.progress import ProgressReport
    from meta_train.runtime.run_directory import check_writable

    if len(config.systems) != 1:
        raise UserError(
            f"`lopt tune` must be given a preset with one system; {name} has "
            f"{len(config.systems)}. Try quadratic-schedule."
        )
    tuners = {n: lookup("tuner", n, TUNERS) for n in options.tuners or TUNERS}
    estimator = type(config.estimator).__name__
    trainer = config.make_trainer()
    searched = {**tuners, estimator: MetaTraining(trainer)}
    out = options.out or Path("runs/tune") / name
    check_writable(out, flag="--out")
    key = jax.random.fold_in(jax.random.key(options.seed), 2**32 - 6)
    problem = OuterProblem(trainer.systems[0], config.horizon, radius=options.radius)
    found: dict[str, list[dict[str, Any]]] = {n: [] for n in searched}
    total = len(searched) * options.num_repeats
    with ProgressReport("tuning", total) as progress:
        progress.note("loading and compiling")
        data = problem.system.load()
        for tuner, search in searched.items():
            for repeat in range(options.num_repeats):
                seed = options.seed + repeat
                history = search.search(
                    problem, data, options.num_episodes * problem.horizon, seed
                )
                kept = list(history)
                if not kept:
                    raise UserError(
                        "`num_episodes` must be enough for a first decision; got "
                        f"{options.num_episodes}. Try {10 * options.num_episodes}."
                    )
                found[tuner].append(judge(problem, data, kept, options.num_runs, key))
                progress.advance(tuner)
    content = {
        "schema": SCHEMA,
        "preset": name,
        "num_steps": options.num_episodes * problem.horizon,
        "tuners": found,
    }
    (out / "tune.json").write_text(json.dumps(content, indent=1) + "\n")
    _draw(out / "tune.png", name, found)
    progress.console.print(_table(name, options, found))
    progress.say(f"Figure and numbers: {out / 'tune.png'}, {out / 'tune.json'}")
    return 0


def _table(name: str, options: _Tune, found: Mapping[str, Any]) -> Table:
    from evaluation.statistics import mean_interval

    table = Table(
        box=None,
        title=f"{name}: {options.num_episodes} episodes of inner steps each",
        title_justify="left",
    )
    for column in ("tuner", "meta-loss", "95 % interval"):
        table.add_column(column, justify="left" if column == "tuner" else "right")
    ends = {
        tuner: np.array([r["losses"][-1] for r in repeats], float)
        for tuner, repeats in found.items()
    }

    def worst(x):
        return np.inf if np.isnan(x).any() else x.mean()

    for tuner in sorted(ends, key=lambda tuner: worst(ends[tuner])):
        interval = mean_interval(np.nan_to_num(ends[tuner], nan=np.inf))
        if not np.isfinite(interval.value):
            table.add_row(tuner, "diverged", "")
            continue
        low, high = interval.low, interval.high
        spread = "" if np.isnan(low) else f"{low:.4g} to {high:.4g}"
        table.add_row(tuner, f"{interval.value:.4g}", spread)
    return table


def _draw(path: Path, name: str, found: Mapping[str, Any]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    for i, (tuner, repeats) in enumerate(found.items()):
        losses = np.array([r["losses"] for r in repeats], float)
        axis.plot(
            repeats[0]["num_steps"],
            losses.mean(axis=0),
            "-" if i == len(found) - 1 else ("--", ":", "-.")[i % 3],
            marker="osD^vP*X"[i % 8],
            ms=4,
            lw=2.2 if i == len(found) - 1 else 1.3,
            label=tuner,
        )
    axis.set(xlabel="inner steps", ylabel="meta-loss of the best so far", title=name)
    axis.set(xscale="log", yscale="log")
    axis.legend(frameon=False, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
