"""Command line of `lopt evaluate`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from lopt.cli.parse import parse


@dataclass(frozen=True)
class _Evaluate:
    sources: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run directories of `lopt meta-train`, files written by `lopt export`, or names of
    shipped optimizers (`lopt show` lists them)."""
    suite: str = "quick"
    """Suite of held-out tasks: quick, width, depth, horizon, batch, architecture,
    dataset or heldout. Only heldout needs downloads."""
    tasks: tuple[str, ...] = ()
    """Evaluate on these tasks instead of a suite; `lopt tasks` lists the names."""
    num_steps: int = 200
    """Horizon of --tasks that are in no suite."""
    out: Path | None = None
    """Output directory for the report, figures and results. Default: evaluation/ in the
    first run directory or next to the first file; runs/NAME/evaluation for a shipped
    optimizer."""
    num_seeds: int = 20
    """Evaluation seeds for each optimizer and task, unseen in meta-training."""
    num_tuning_seeds: int = 3
    """Separate seeds for tuning the baselines."""
    max_steps: int | None = None
    """Maximum number of inner steps of a run; unlimited by default."""
    seed: int = 0
    """Random seed of all runs."""
    baselines: tuple[str, ...] = ()
    """Baselines to compare with, in addition to Adam: sgd, momentum, adam, adamw,
    nadamw, lion, muon and schedule-free, or some of them; all by default."""
    tune: tuple[str, ...] = ()
    """Names of sources whose learning rate and schedule are tuned like a baseline's."""
    ablate: tuple[Literal["untrained"], ...] = ()
    """Ablations: untrained also runs each learned optimizer at its initial theta."""
    training_tasks: bool = False
    """Also evaluate on the meta-training tasks."""
    skip_missing: bool = False
    """Skip tasks whose dataset has not been prepared."""
    cache: bool = True
    """Reuse cached results of earlier evaluations and cache new ones."""


def evaluate(arguments: Sequence[str]) -> int:
    """Run `lopt evaluate RUN_DIR_OR_FILE ... [--suite quick] [--out DIR]`."""
    options = parse(
        _Evaluate,
        arguments,
        prog="lopt evaluate",
        description="Compare learned optimizers with tuned baselines on unseen runs.",
    )
    import lopt
    from evaluation import evaluate
    from evaluation.baselines import BASELINES
    from evaluation.cli.summary import print_summary
    from evaluation.report.write import write_report
    from evaluation.suites import SUITES, cases_of_tasks
    from evaluation.training.cache import Cache
    from lopt.cache_directory import cache_folder
    from lopt.errors import UserError, lookup
    from lopt.pretrained import list_pretrained, resolve
    from meta_train.config.config_file import read_config
    from meta_train.config.own_code import class_name
    from meta_train.runtime.progress import ProgressReport
    from meta_train.runtime.run_directory import check_writable

    lookup("suite", options.suite, SUITES)
    names = [class_name(name) for name in options.tasks]
    if not options.sources:
        raise UserError(
            "`lopt evaluate` must be given a run directory or an exported file; got "
            "none. Try lopt evaluate runs/demo."
        )
    sources = [s if s.is_dir() else resolve(str(s)) for s in options.sources]
    # Validate all sources before anything is written.
    for source in sources:
        read_config(source) if source.is_dir() else lopt.read_card(source)
    first = sources[0]
    if first in list_pretrained().values():
        first = Path("runs") / first.stem
    beside = first.parent if first.is_file() else first
    out = options.out or beside / "evaluation"
    check_writable(out, flag="--out")
    with ProgressReport("evaluating", 100, unit="%") as progress:
        progress.note("compiling")
        try:
            results = evaluate(
                _files(sources, out),
                cases_of_tasks(names, options.num_steps) if names else options.suite,
                num_seeds=options.num_seeds,
                num_tuning_seeds=options.num_tuning_seeds,
                max_steps=options.max_steps,
                seed=options.seed,
                baselines=options.baselines or tuple(BASELINES),
                tune=options.tune,
                ablate=options.ablate,
                training_tasks=options.training_tasks,
                skip_missing=options.skip_missing,
                cache=Cache(cache_folder("evaluations") if options.cache else None),
                on_progress=lambda fraction, text: progress.update(
                    round(100 * fraction, 1), note=text
                ),
            )
        except KeyboardInterrupt:
            progress.say("Stopped. Finished runs are cached; the same command resumes.")
            raise
        progress.note("drawing")
        write_report(out, results)
    print_summary(results, out, progress)
    return 0


def _files(sources: Sequence[Path], out: Path) -> dict[str, Path]:
    """Map a unique name to an optimizer file for each source.

    The latest checkpoint of a run directory is exported below `out`.
    """
    from meta_train.runtime.export import OPTIMIZER_FILE, export_run

    files = {}
    for source in sources:
        name = source.resolve().name if source.is_dir() else source.stem
        while name in files:  # Runs in different directories may share a name.
            name += "'"
        folder = out / name if len(sources) > 1 else out
        if source.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            files[name] = export_run(source, folder / OPTIMIZER_FILE)
        else:
            files[name] = source
    return files
