"""Command line of `lopt estimators`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lopt.files.dataclass_json import to_dict
from meta_train.cli.preset import parse_preset


@dataclass(frozen=True)
class _Estimators:
    lengths: tuple[int, ...] = ()
    """Truncation window lengths to compare; that of the preset by default."""
    estimators: tuple[str, ...] = ()
    """Names of the estimators; all that support the preset's system by default."""
    population: int = 8
    """Population size: antithetic pairs or episodes per estimate. The signal per second
    hardly depends on it."""
    seconds: float = 2.0
    """Measurement time per estimator in seconds, excluding compile time."""
    minutes: float = 2.6
    """Approximate limit of the total time in minutes. Estimators that exceed it are
    skipped."""
    seed: int = 0
    """Random seed."""
    out: Path | None = None
    """Output directory of figure and JSON file; runs/estimators/PRESET by default."""

    def __post_init__(self):
        if self.population < 1 or not min(self.seconds, self.minutes) > 0:
            raise ValueError(
                "`population` must be at least 1, `seconds` and `minutes` positive; "
                f"got population={self.population}, seconds={self.seconds}, "
                f"minutes={self.minutes}. Try 8, 2 and 2.6."
            )


def estimators(arguments: Sequence[str]) -> int:
    """Run `lopt estimators PRESET [--lengths 1 10 100]`."""
    name, config, options = parse_preset(
        "estimators",
        arguments,
        _Estimators,
        "Compare estimators of the outer gradient on a preset's system.",
    )
    import jax

    from meta_train.analysis import estimator_report
    from meta_train.analysis.diagnostics import candidates, diagnose
    from meta_train.runtime.progress import ProgressReport
    from meta_train.runtime.run_directory import check_writable

    out = options.out or Path("runs/estimators") / name
    system = config.make_trainer().systems[0]
    data = system.load()
    key_theta, key = jax.random.split(jax.random.key(options.seed))
    theta = system.init_theta(key_theta)
    chosen, refused = candidates(
        config.estimator,
        system,
        data,
        theta,
        names=options.estimators,
        lengths=options.lengths,
        population=options.population,
    )
    check_writable(out, flag="--out")
    with ProgressReport("estimators", 2 * len(chosen)) as progress:
        progress.note("compiling")
        for reason in refused:
            progress.say(f"Skipped: {reason}")
        results = diagnose(
            chosen,
            system,
            data,
            theta,
            key,
            seconds=options.seconds,
            minutes=options.minutes,
            on_progress=progress.advance,
        )
        reached = {result.estimator for result in results}
        missing = [_label(other) for other in chosen if other not in reached]
        if missing:
            progress.say(
                f"No time left for {', '.join(missing)}. Try the same command again, "
                "which need not compile the others, or --minutes "
                f"{3 * options.minutes:g}, or --estimators with their names."
            )
    progress.console.print(estimator_report.table(results, chosen[0]))
    about = {"preset": name, "seed": options.seed, "system": to_dict(system)}
    estimator_report.write(out, results, about)
    paths = f"{out / 'variance.png'}, {out / 'estimators.json'}"
    progress.say(f"Figure and numbers: {paths}")
    return 0


def _label(estimator) -> str:
    return f"{type(estimator).__name__} (K={estimator.truncation.length})"
