"""Command line of `lopt meta-train`, `lopt export` and `lopt estimators`."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_args

import tyro

from lopt.describe import to_dict
from lopt.errors import find
from meta_train import preset_cli
from meta_train.presets import PRESETS, Measure, listing

_META_TRAIN = """usage: lopt meta-train PRESET [--estimator NAME] [--optimizer NAME]
                       [--tasks NAME [NAME ...]] [--augment NAME [NAME ...]]
                       [--measure train-loss|validation-loss|validation-error]
                       [--distributed auto|on|off] [--coordinator-address HOST:PORT]
                       [--num-processes N] [--process-id I]
                       [--flags]

`lopt meta-train PRESET --help` lists the flags, `lopt tasks` the names.

presets:"""


def meta_train(arguments: Sequence[str]) -> int:
    """Run `lopt meta-train PRESET [--flags]`."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"{_META_TRAIN}\n{listing()}")
        return 0 if arguments else 2
    name, *rest = arguments
    preset = find("preset", name, PRESETS)
    # The flags of the config depend on the chosen components: parse these first.
    parts = argparse.ArgumentParser(
        prog=f"lopt meta-train {name}", add_help=False, allow_abbrev=False
    )
    parts.add_argument("--estimator")
    parts.add_argument("--optimizer")
    parts.add_argument("--tasks", nargs="+", default=())
    parts.add_argument("--augment", nargs="+", default=())
    parts.add_argument("--measure", choices=get_args(Measure))
    hosts = argparse.ArgumentParser(
        prog=f"lopt meta-train {name}", add_help=False, allow_abbrev=False
    )
    hosts.add_argument("--distributed", choices=("auto", "on", "off"), default="auto")
    hosts.add_argument("--coordinator-address")
    hosts.add_argument("--num-processes", type=int)
    hosts.add_argument("--process-id", type=int)
    launched, rest = hosts.parse_known_args(rest)
    chosen, flags = parts.parse_known_args(rest)
    if not chosen.tasks and not any(flag.startswith("--systems") for flag in flags):
        preset.check_prepared(flags)
    from meta_train import cores, distributed
    from meta_train.config import MetaTrainConfig
    from meta_train.preset_configs import CONFIGS, compose
    from meta_train.run import meta_train as run

    launch = distributed.Launch(**vars(launched))
    config = tyro.cli(
        MetaTrainConfig,
        default=compose(CONFIGS[name], **vars(chosen)),
        args=flags,
        prog=f"lopt meta-train {name}",
        description=(
            f"{preset.description} Other parts by name come first: --estimator NAME, "
            "--optimizer NAME, --tasks NAME [NAME ...], --augment NAME [NAME ...], "
            "--measure train-loss|validation-loss|validation-error. On several hosts: "
            "--distributed auto|on|off, --coordinator-address HOST:PORT, "
            "--num-processes N, --process-id I; docs/pods.md."
        ),
    )
    distributed.start(launch)
    cores.share(config.systems, config.estimator.population_size)
    run(config)
    return 0


@dataclass(frozen=True)
class _Export:
    run_dir: Annotated[Path, tyro.conf.Positional]
    """Run directory of `lopt meta-train`."""
    out: Path
    """Output file, ending in .safetensors."""


def export(arguments: Sequence[str]) -> int:
    """Run `lopt export RUN_DIR --out FILE`."""
    options = tyro.cli(
        _Export,
        args=arguments,
        prog="lopt export",
        description="Export the latest checkpoint of a run as one optax optimizer.",
    )
    from meta_train.run import export_run

    print(f"Exported to {export_run(options.run_dir, options.out)}.")
    return 0


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
    name, options = preset_cli.parse(
        "estimators",
        arguments,
        _Estimators,
        "Compare estimators of the outer gradient on a preset's system.",
    )
    import jax

    from meta_train import estimator_report
    from meta_train.diagnostics import candidates, diagnose
    from meta_train.preset_configs import CONFIGS
    from meta_train.progress import ProgressReport
    from meta_train.run import make_trainer
    from meta_train.run_directory import check_writable

    out = options.out or Path("runs/estimators") / name
    config = CONFIGS[name]
    system = make_trainer(config).systems[0]
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
            progress.say(f"Left out: {reason}")
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
