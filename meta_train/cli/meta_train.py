"""Command line of `lopt meta-train`."""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lopt.cli.parse import parse
from lopt.errors import UserError
from meta_train.cli.components import parse_components

if TYPE_CHECKING:
    from meta_train.config.config import MetaTrainConfig

_EARLIER_FLAGS = """Flags that are not fields of the configuration:
  --tasks NAME [NAME ...], --optimizer NAME, --estimator NAME
  --outer-optimizer NAME, --augment NAME [NAME ...]
  --measure train-loss|validation-loss|validation-error
  --seeds S [S ...]: one run for each, in RUN_DIR/seed-S
  --distributed auto|on|off, --coordinator-address HOST:PORT
  --num-processes N, --process-id I, --join-seconds S

`lopt tasks` lists the names; FILE.py:CLASS names a class of yours.

Without a preset or tasks:
  --run-dir DIR: resume a run
  --run-dir DIR --extend N: continue a run for N more outer updates

docs/pods.md explains runs on several hosts."""


def meta_train(arguments: Sequence[str]) -> int:
    """Run `lopt meta-train [PRESET] [--flags]`."""
    launch, rest = _parse_launch(arguments)
    seeds = launch.pop("seeds")
    existing, extend = _existing_run(rest)
    config = existing if existing is not None else _new_config(rest)
    from meta_train.devices.launch import Launch, start
    from meta_train.runtime import cpu_devices
    from meta_train.runtime.run import meta_train as run

    start(Launch(**launch))
    cpu_devices.split_over_cores(config.systems, config.estimator.population_size)
    if seeds is None:
        run(config, extend=extend)
        return 0
    _run_seeds(config, seeds)
    return 0


def _run_seeds(config: "MetaTrainConfig", seeds: Sequence[int]) -> None:
    """Run or resume a configuration with several seeds, which share one program."""
    from meta_train.devices import distributed
    from meta_train.runtime.overlay import draw_seeds
    from meta_train.runtime.run import meta_train as run

    configs = [
        dataclasses.replace(config, seed=seed, run_dir=config.run_dir / f"seed-{seed}")
        for seed in dict.fromkeys(seeds)
    ]
    for each in configs:
        if run(each).num_outer_steps < config.num_outer_steps:
            return  # stopped by a signal
    if distributed.is_first():
        figure = config.run_dir / "seeds.png"
        run_dirs = [each.run_dir for each in configs]
        print(f"Figure: {draw_seeds(config.run_dir.name, run_dirs, figure)}")


def _parse_launch(arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Split off the flags of runs on several hosts, and `--seeds`."""
    hosts = argparse.ArgumentParser(
        prog="lopt meta-train", add_help=False, allow_abbrev=False
    )
    hosts.add_argument("--distributed", choices=("auto", "on", "off"), default="auto")
    hosts.add_argument("--coordinator-address")
    hosts.add_argument("--num-processes", type=int)
    hosts.add_argument("--process-id", type=int)
    hosts.add_argument("--join-seconds", type=float, default=30.0)
    hosts.add_argument("--seeds", type=int, nargs="+")
    launched, rest = hosts.parse_known_args(arguments)
    return vars(launched), rest


def _existing_run(
    arguments: Sequence[str],
) -> tuple["MetaTrainConfig | None", bool]:
    """Configuration of the run to resume, if only its directory is given.

    Returns:
        The configuration, or `None` for a new one, and whether it is an extension.
    """
    parser = argparse.ArgumentParser(
        prog="lopt meta-train", add_help=False, allow_abbrev=False
    )
    parser.add_argument("--run-dir", "--run_dir", type=Path)
    parser.add_argument("--extend", type=int)
    chosen, others = parser.parse_known_args(arguments)
    if chosen.run_dir is None or others:
        if chosen.extend is not None:
            raise UserError(
                "--extend continues a run with its own configuration, so it takes only "
                f"--run-dir; got {' '.join(arguments)}. Try lopt meta-train --run-dir "
                f"DIR --extend {chosen.extend}."
            )
        return None, False
    if chosen.extend is not None and chosen.extend < 1:
        raise UserError(f"--extend must be at least 1; got {chosen.extend}. Try 1000.")
    from meta_train.config.config_file import read_config

    config = read_config(chosen.run_dir)
    if chosen.extend is None:
        return config, False
    num_outer_steps = config.num_outer_steps + chosen.extend
    return dataclasses.replace(config, num_outer_steps=num_outer_steps), True


def _new_config(arguments: Sequence[str]) -> "MetaTrainConfig":
    """Configuration from a preset or tasks, other parts by name, and flags."""
    components, flags = parse_components("meta-train", arguments)
    from meta_train.config.config import MetaTrainConfig

    return parse(
        MetaTrainConfig,
        flags,
        prog=f"lopt meta-train {components.preset or ''}".strip(),
        description=f"{components.description}\n\n{_EARLIER_FLAGS}",
        default=components.config(),
    )
