"""Command line of `lopt reproduce`: the experiments of the PES paper."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from lopt.errors import UserError, lookup


@dataclass(frozen=True)
class _Reproduce:
    name: Annotated[str, tyro.conf.Positional] = ""
    """Experiment, or `all`. `--list` shows the names."""
    list: bool = False
    """List the experiments with figure, claim and cost, and run nothing."""
    scale: str = "small"
    """smoke (seconds: it runs), small (minutes: it shows the claim) or paper (the
    settings of the paper; hours)."""
    out: Path | None = None
    """Output directory; runs/paper/SCALE by default. A run in it is resumed."""
    workers: int = 2
    """Experiments to run at a time with `all`, on separate cores."""
    report: bool = True
    """Write report.html with all experiments in the output directory."""

    def __post_init__(self):
        if self.workers < 1:
            raise UserError(f"`workers` must be at least 1; got {self.workers}. Try 2.")


def reproduce(arguments: Sequence[str]) -> int:
    """Run `lopt reproduce NAME | all | --list`."""
    options = tyro.cli(
        _Reproduce,
        args=arguments,
        prog="lopt reproduce",
        description="Reproduce an experiment of the PES paper and check its claim.",
    )
    from evaluation.paper import EXPERIMENTS
    from evaluation.paper.experiment import SCALES
    from evaluation.paper.runner import check_directory
    from meta_train.runtime.run_directory import check_writable

    if options.list:
        return _list()
    scale = lookup("scale", options.scale, SCALES)
    if not options.name:
        raise UserError(
            "`lopt reproduce` must be given an experiment; got none. Try "
            f"{', '.join(EXPERIMENTS)}, or all."
        )
    lookup("experiment", options.name, {**EXPERIMENTS, "all": None})
    experiments = {name: kind.at(scale) for name, kind in EXPERIMENTS.items()}
    chosen = (
        experiments.values() if options.name == "all" else [experiments[options.name]]
    )
    out = options.out or Path("runs/paper") / scale
    for experiment in chosen:
        experiment.check_prepared()
        check_directory(experiment, scale, out)
    check_writable(out, flag="--out")
    if options.name == "all":
        return _run_all(options, experiments, scale, out)
    return _run_one(options, experiments, scale, out)


def _list() -> int:
    from evaluation.paper import EXPERIMENTS

    table = Table(box=None, title="Experiments of the PES paper", title_justify="left")
    for column in ("name", "in the paper", "claim", "small", "paper"):
        justify = "right" if column in ("small", "paper") else "left"
        width = max(map(len, EXPERIMENTS)) if column == "name" else None
        table.add_column(column, justify=justify, min_width=width)
    for name, kind in EXPERIMENTS.items():
        times = (_duration(float(kind.minutes[scale])) for scale in ("small", "paper"))
        table.add_row(name, kind.figure, kind.claim, *times)
    console = Console()
    console.print(table)
    console.print("Times are of one CPU core. `--scale smoke` takes seconds.")
    return 0


def _duration(minutes: float) -> str:
    if minutes < 1:
        return "< 1 min"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:,.0f} h"


def _run_one(options, experiments, scale, out: Path) -> int:
    from evaluation.paper.report import write_report
    from evaluation.paper.runner import Interrupted, reproduce as run
    from meta_train.runtime.progress import ProgressReport

    experiment = experiments[options.name]
    total = len(experiment.jobs())
    with ProgressReport(options.name, total) as progress:
        progress.note("preparing")

        def show(name: str, done: int) -> None:
            progress.update(done, note=name)

        try:
            outcome = run(experiment, scale, out, show)
        except Interrupted:
            progress.say("Stopped and saved; the same command resumes.")
            return 130
        progress.update(total, note=outcome.verdict.word)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(f"Claim: {experiment.claim}")
    console.print(f"Verdict at the scale {scale}: {outcome.verdict.word}.")
    console.print(f"Evidence: {outcome.verdict.evidence}")
    console.print(f"Figure: {outcome.directory / 'figure.png'}")
    if options.report:
        page = write_report([*experiments.values()], scale, out)
        console.print(f"Report: {page}")
    return 0


def _run_all(options, experiments, scale, out: Path) -> int:
    from evaluation.paper.report import write_report
    from evaluation.paper.runner import read_outcome
    from evaluation.paper.suite import Suite, last_line
    from meta_train.runtime.progress import ProgressReport

    workers = min(options.workers, os.cpu_count() or 1)
    suite = Suite([*experiments.values()], scale, out, workers)
    with ProgressReport("reproducing", suite.total) as progress:
        suite.run(progress)
    table = Table(box=None, title=f"Claims at the scale {scale}", title_justify="left")
    for column in ("experiment", "verdict", "minutes", "evidence"):
        table.add_column(column, no_wrap=column != "evidence")
    for name, experiment in experiments.items():
        outcome = read_outcome(experiment, scale, out)
        if name in suite.failed or outcome is None:
            table.add_row(name, "failed", "", last_line(out, name))
            continue
        verdict, minutes = outcome.verdict, f"{outcome.seconds / 60:.1f}"
        table.add_row(name, verdict.word, minutes, verdict.evidence)
    console = Console()
    console.print(table)
    page = write_report([*experiments.values()], scale, out)
    console.print(f"Report: {page}", soft_wrap=True)
    return 1 if suite.failed else 0
