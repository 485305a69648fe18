"""Command-line entry point of `lopt tasks`: list tasks or describe one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from lopt.cli.parse import parse
from lopt.errors import UserError, lookup


@dataclass(frozen=True)
class _Tasks:
    name: Annotated[str | None, tyro.conf.Positional] = None
    """Task to describe: parameters, cost, loss under tuned SGD. Default: list all."""
    num_steps: int = 200
    """Number of steps of the loss curve."""
    out: Path = Path("runs/tasks")
    """Output directory for the figure."""

    def __post_init__(self):
        if self.num_steps < 1:
            raise ValueError(
                f"`num_steps` must be at least 1; got {self.num_steps}. Try 200."
            )


def tasks(arguments: Sequence[str]) -> int:
    """Run `lopt tasks [NAME]`."""
    options = parse(
        _Tasks,
        arguments,
        prog="lopt tasks",
        description="List tasks, optimizers, estimators and presets, or show one task.",
    )
    return _list() if options.name is None else _show(options)


def _list() -> int:
    from lopt.registry import OPTIMIZERS
    from meta_train.config.presets import PRESETS
    from meta_train.estimators import ESTIMATORS
    from meta_train.runtime.progress import ProgressReport
    from tasks.base import Family
    from tasks.size import size
    from tasks.zoo import AUGMENTATIONS, ZOO

    table = Table(title="Tasks and systems", title_justify="left", box=None)
    for name in ("name", "for", "params", "MFLOP", ""):
        justify = "right" if name in ("params", "MFLOP") else "left"
        table.add_column(name, justify=justify, no_wrap=bool(name))
    with ProgressReport("measuring", len(ZOO)) as progress:
        for name, entry in ZOO.items():
            numbers = ("-", "-")
            if isinstance(entry.problem, Family):
                found = size(entry.problem)
                numbers = (f"{found.num_parameters:,}", _short(found.flops / 1e6))
            table.add_row(name, entry.use, *numbers, entry.description)
            progress.advance(name)
    console = progress.console
    console.print(table, "")

    def first_line(kind):
        return (kind.__doc__ or "").splitlines()[0]

    sections = {
        "Augmentations, by --augment": {
            name: first_line(kind) for name, kind in AUGMENTATIONS.items()
        },
        "Learned optimizers": {n: first_line(kind) for n, kind in OPTIMIZERS.items()},
        "Estimators": {name: first_line(kind) for name, kind in ESTIMATORS.items()},
        "Presets of `lopt meta-train`": {n: p.description for n, p in PRESETS.items()},
    }
    for title, rows in sections.items():
        table = Table(title=title, title_justify="left", show_header=False, box=None)
        for name, text in rows.items():
            table.add_row(name, text)
        console.print(table, "")
    return 0


def _show(options: _Tasks) -> int:
    import jax
    import jax.numpy as jnp
    import numpy as np

    from evaluation.baselines import Baseline, Setting
    from evaluation.training.batched import Runs, train
    from meta_train.runtime.progress import ProgressReport
    from meta_train.runtime.run_directory import check_writable
    from tasks.base import Family
    from tasks.size import size
    from tasks.zoo import ZOO

    name = options.name or ""
    entry = lookup("task", name, ZOO)
    if not isinstance(entry.problem, Family):
        raise UserError(
            f"`lopt tasks NAME` must be given a task that SGD can train; {name} is a "
            f"system, whose theta is not an optimizer. Try lopt estimators {name}."
        )
    found = size(entry.problem)
    console = Console()
    table = Table(box=None, title=f"{name}: {entry.description}", title_justify="left")
    table.add_column("parameter")
    table.add_column("shape")
    table.add_column("numbers", justify="right")
    for path, leaf in jax.tree_util.tree_leaves_with_path(found.params):
        where = jax.tree_util.keystr(path, simple=True, separator="/")
        shape = " x ".join(map(str, leaf.shape)) or "-"
        table.add_row(where or "params", shape, f"{leaf.size:,}")
    table.add_section()
    table.add_row("in all", "", f"{found.num_parameters:,}")
    console.print(table)
    console.print(f"{_short(found.flops / 1e6)} MFLOP a step; for {entry.use}.")
    check_writable(options.out, flag="--out")
    rates = np.geomspace(1e-3, 10.0, 9)
    keys = jax.random.split(jax.random.key(0), 3)
    curves = []
    with ProgressReport("tuning SGD", len(rates)) as progress:
        progress.note("loading and compiling")
        for rate in rates:
            settings = Setting(jnp.full(3, rate), jnp.zeros(3))
            runs = Runs(Baseline("sgd"), settings, keys)
            (found,) = train(entry.problem, options.num_steps, [runs])
            curves.append(found.train_loss)
            progress.advance(f"learning rate {rate:.3g}")
    means = [c.mean() if np.isfinite(c).all() else np.inf for c in curves]
    best = int(np.argmin(means))
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{name}.png"
    _draw(path, name, rates, curves, best)
    last = curves[best][:, -max(options.num_steps // 20, 1) :].mean()
    console.print(
        f"SGD at its best learning rate of {rates[best]:.3g}: loss "
        f"{curves[best][:, 0].mean():.4g} to {last:.4g} in {options.num_steps} steps. "
        f"Figure: {path}",
        soft_wrap=True,
    )
    return 0


def _draw(path: Path, name: str, rates, curves, best: int) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    for i, curve in enumerate(curves):
        if i != best and abs(i - best) <= 3:
            axis.plot(curve.mean(axis=0), color="0.75", lw=0.8, label=None)
    middle = curves[best].mean(axis=0)
    axis.plot(middle, color="C0", label=f"SGD, learning rate {rates[best]:.3g}")
    axis.fill_between(
        range(len(middle)), curves[best].min(0), curves[best].max(0), alpha=0.2
    )
    axis.plot([], color="0.75", lw=0.8, label="other learning rates")
    start, end = middle[0], middle.min()
    margin = 0.15 * (start - end)
    axis.set(xlabel="step", ylabel="loss", title=name)
    axis.set_ylim(end - margin, start + 3 * margin)
    axis.legend(frameon=False)
    figure.savefig(path, dpi=120)


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1_000 else f"{value:,.0f}"
