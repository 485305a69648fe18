"""`lopt evaluate`: parse, run, show."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from lopt.errors import find


@dataclass(frozen=True)
class _Evaluate:
    source: Annotated[Path, tyro.conf.Positional]
    """Run directory of a `lopt meta-train`, or a file written by `lopt export`."""
    suite: str = "quick"
    """Which tasks besides those it was trained on; quick needs no download."""
    out: Path | None = None
    """Directory for figure and results.json; by default beside the source."""
    num_seeds: int = 20
    """Runs of each task, none of which meta-training has seen."""
    seed: int = 0
    """Fixes the runs."""

    def __post_init__(self):
        if self.num_seeds < 1:
            raise ValueError(
                f"`num_seeds` must be at least 1; got {self.num_seeds}. Try 20."
            )


def evaluate(arguments: Sequence[str]) -> int:
    """Runs `lopt evaluate RUN_DIR_OR_FILE [--suite quick] [--out DIR]`."""
    options = tyro.cli(
        _Evaluate,
        args=arguments,
        prog="lopt evaluate",
        description="Compare a learned optimizer with tuned Adam on unseen runs.",
    )
    import lopt
    from evaluation import report
    from evaluation.run import evaluate as run
    from evaluation.suites import SUITES, with_training_cases
    from meta_train.progress import ProgressReport
    from meta_train.run import OPTIMIZER_FILE, export_run
    from meta_train.run_directory import check_writable

    suite = find("suite", options.suite, SUITES)
    path = options.source
    beside = path if path.is_dir() else path.parent
    out = options.out or beside / "evaluation"
    if path.is_dir():
        path = export_run(path, out / OPTIMIZER_FILE)
    card = lopt.read_card(path)
    optimizer, theta = lopt.load_theta(path)
    check_writable(out, flag="--out")
    cases = with_training_cases(suite, card)
    results = []
    with ProgressReport("evaluating", len(cases)) as progress:
        progress.note("compiling")

        def on_result(result):
            results.append(result)
            progress.update(len(results), {"ratio": result.mean.ratio.value})

        run(
            optimizer,
            theta,
            cases,
            num_seeds=options.num_seeds,
            seed=options.seed,
            on_result=on_result,
        )
    about = {"card": card, "num_seeds": options.num_seeds, "seed": options.seed}
    progress.console.print(report.table(results, options.num_seeds))
    report.write(out, results, about)
    progress.say(f"Figure and numbers: {out / 'curves.png'}, {out / 'results.json'}")
    return 0
