"""Choice of the implementation of elementwise functions on CPU, for one run."""

import dataclasses
from collections.abc import Callable

from lopt.kernels.prepare import prepare
from meta_train.config.config import MetaTrainConfig
from meta_train.config.config_file import recorded_kernels
from tasks.base import Family
from tasks.size import size


def resolve_kernels(
    config: MetaTrainConfig, say: Callable[[str], None]
) -> MetaTrainConfig:
    """Replace `config.kernels` by the implementation that this process will use.

    A resumed run keeps its implementation if it is available, since implementations
    differ by rounding. Native code is compiled if the run needs it.
    """
    kernels = config.kernels
    if kernels == "auto":
        kernels = recorded_kernels(config.run_dir)
    updates = [
        (system.learned_optimizer, size(system.zoo_problem).params)
        for system in config.systems
        if system.learned_optimizer and isinstance(system.zoo_problem, Family)
    ]
    return dataclasses.replace(config, kernels=prepare(kernels, updates, say))
