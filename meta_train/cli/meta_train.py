"""Command line of `lopt meta-train`."""

import argparse
from collections.abc import Sequence
from typing import get_args

import tyro

from lopt.errors import lookup
from meta_train.config.presets import PRESETS, listing
from meta_train.core.measures import Measure

_META_TRAIN = """usage: lopt meta-train PRESET [--estimator NAME] [--optimizer NAME]
                       [--outer-optimizer NAME] [--tasks NAME [NAME ...]]
                       [--augment NAME [NAME ...]]
                       [--measure train-loss|validation-loss|validation-error]
                       [--distributed auto|on|off] [--coordinator-address HOST:PORT]
                       [--num-processes N] [--process-id I] [--join-seconds S]
                       [--flags]

`lopt meta-train PRESET --help` lists the flags, `lopt tasks` the names.

presets:"""


def meta_train(arguments: Sequence[str]) -> int:
    """Run `lopt meta-train PRESET [--flags]`."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"{_META_TRAIN}\n{listing()}")
        return 0 if arguments else 2
    name, *rest = arguments
    preset = lookup("preset", name, PRESETS)
    # The flags of the config depend on the chosen components: parse these first.
    parts = argparse.ArgumentParser(
        prog=f"lopt meta-train {name}", add_help=False, allow_abbrev=False
    )
    parts.add_argument("--estimator")
    parts.add_argument("--optimizer")
    parts.add_argument("--outer-optimizer")
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
    hosts.add_argument("--join-seconds", type=float, default=30.0)
    launched, rest = hosts.parse_known_args(rest)
    chosen, flags = parts.parse_known_args(rest)
    if not chosen.tasks and not any(flag.startswith("--systems") for flag in flags):
        preset.check_prepared(flags)
    from meta_train.config.config import MetaTrainConfig
    from meta_train.config.preset_configs import CONFIGS, compose
    from meta_train.devices.launch import Launch, start
    from meta_train.runtime import cpu_devices
    from meta_train.runtime.run import meta_train as run

    launch = Launch(**vars(launched))
    config = tyro.cli(
        MetaTrainConfig,
        default=compose(CONFIGS[name], **vars(chosen)),
        args=flags,
        prog=f"lopt meta-train {name}",
        description=(
            f"{preset.description} Other parts by name come first: --estimator NAME, "
            "--optimizer NAME, --outer-optimizer NAME, --tasks NAME [NAME ...], "
            "--augment NAME [NAME ...], "
            "--measure train-loss|validation-loss|validation-error. On several hosts: "
            "--distributed auto|on|off, --coordinator-address HOST:PORT, "
            "--num-processes N, --process-id I; docs/pods.md."
        ),
    )
    start(launch)
    cpu_devices.split_over_cores(config.systems, config.estimator.population_size)
    run(config)
    return 0
