"""Interface of loggers, and the protection of a run from their failures."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from typing_extensions import override

from lopt.errors import one_line
from meta_train.config.config import MetaTrainConfig

Callback: TypeAlias = Callable[[int, Mapping[str, float]], object]
"""Function of the outer step and the metrics by name."""


class LoggedRun(NamedTuple):
    """Run that a logger starts or resumes to log.

    Attributes:
        config: Configuration of the run.
        described: The same, serialized.
        step: Last outer step whose metrics are kept; 0 for a new run.
        say: Function that prints a message.
    """

    config: MetaTrainConfig
    described: Mapping[str, Any]
    step: int
    say: Callable[[str], None]


class Logger(ABC):
    """Destination of metrics beside ``metrics.jsonl``.

    Methods may raise any exception: `GuardedLogger` reports it, and the run continues.
    A logger that is selected by name is created from a `LoggedRun`.
    """

    @abstractmethod
    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of one outer step."""

    def close(self) -> None:  # noqa: B027 (optional)
        """Write buffered metrics at the end of the run."""

    def abandon(self) -> None:  # noqa: B027 (optional)
        """Release resources after an error; `close` is not called then."""


class CallbackLogger(Logger):
    """Logger that calls a function of the user."""

    def __init__(self, callback: Callback):
        self._callback = callback

    @override
    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._callback(step, dict(metrics))


class GuardedLogger:
    """Logger whose first error is reported and ends its use, not the run."""

    def __init__(
        self, name: str, create: Callable[[], Logger], say: Callable[[str], None]
    ):
        self._name, self._say = name, say
        self._logger: Logger | None = None
        try:
            self._logger = create()
        except Exception as error:  # such as a full disk
            reason = one_line(error)
            say(f"{name} cannot be started ({reason}); the run does not use it.")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of one outer step, unless the logger has failed."""
        if self._logger is None:
            return
        try:
            self._logger.write(step, metrics)
        except Exception as error:  # for example, if the service of wandb was killed
            self._say(
                f"{self._name} has failed ({one_line(error)}); the run continues "
                "without it. metrics.jsonl has all metrics."
            )
            self._logger.abandon()
            self._logger = None

    def close(self) -> None:
        """Close the logger, unless it has failed."""
        if self._logger is None:
            return
        try:
            self._logger.close()
        except Exception as error:
            self._say(f"{self._name} could not be closed ({one_line(error)}).")
            self._logger.abandon()
