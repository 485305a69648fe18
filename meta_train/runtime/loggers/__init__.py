"""Loggers of meta-training, by name.

`metrics.jsonl` is always written. `LOGGERS` lists the loggers that a configuration can
add; to register one, add it there and to `LoggerName`.
"""

import functools
import importlib.util
from collections.abc import Callable, Sequence

from lopt.errors import UserError
from meta_train.config.config import LoggerName, MetaTrainConfig
from meta_train.runtime.loggers.base import (
    Callback as Callback,
    CallbackLogger,
    GuardedLogger,
    LoggedRun as LoggedRun,
    Logger,
)
from meta_train.runtime.loggers.csv_log import CSVLog
from meta_train.runtime.loggers.tensorboard_log import TensorBoardLog
from meta_train.runtime.loggers.wandb_log import WandbLog

LOGGERS: dict[LoggerName, Callable[[LoggedRun], Logger]] = {
    "wandb": WandbLog,
    "tensorboard": TensorBoardLog,
    "csv": CSVLog,
}
_EXTRAS = {"tensorboard": ("tensorboardX", "tensorboard")}  # package and extra


def check_loggers(config: MetaTrainConfig) -> None:
    """Validate that the packages of all loggers are installed.

    Raises:
        UserError: If one is missing.
    """
    for name in config.loggers:
        package, extra = _EXTRAS.get(name, (None, None))
        if package and importlib.util.find_spec(package) is None:
            raise UserError(
                f"the logger {name} must have the package {package}; it was not "
                f"found. Try pip install '.[{extra}]' in a clone of lopt."
            )


def open_loggers(
    run: LoggedRun, callback: Callback | None = None
) -> Sequence[GuardedLogger]:
    """Create the loggers of a run by name, and one for `callback` if given."""
    opened = [
        GuardedLogger(
            name,
            functools.partial(LOGGERS[name], run),
            run.say,
        )
        for name in dict.fromkeys(run.config.loggers)
        if not (name == "wandb" and run.config.wandb == "off")
    ]
    if callback is not None:
        create = functools.partial(CallbackLogger, callback)
        opened.append(GuardedLogger("the callback", create, run.say))
    return opened
