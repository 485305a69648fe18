"""Detection of meta-training that cannot make progress."""

import math
from collections.abc import Callable, Mapping

from meta_train.config.config import MetaTrainConfig

_REMEDY = (
    "Try another --estimator.std, a smaller --outer-optimizer.learning-rate, or a task "
    "whose loss is finite at the start."
)


class TrainingHealth:
    """Count of consecutive outer updates without a usable meta-gradient.

    An update is faulty if its gradient is zero or not finite, or if more than half of
    the population is not finite. Such updates may follow a divergence, so that states
    after them are not saved.

    Attributes:
        num_faulty: Consecutive faulty updates until now.
    """

    def __init__(self, config: MetaTrainConfig, say: Callable[[str], None]):
        """Start with no faulty updates.

        Args:
            config: Configuration of the run.
            say: Callback for warnings; the first fault is reported at once.
        """
        self.num_faulty = 0
        self._fault = ""
        self._most = config.max_faulty_updates
        self._population = config.estimator.population_size
        self._say, self._warned = say, set[str]()

    def observe(self, step: int, num: int, metrics: Mapping[str, float]) -> None:
        """Process the metrics of the last `num` updates, averaged over them.

        Args:
            step: Number of outer updates taken.
            num: Number of updates since the last call.
            metrics: Mean metrics by name; those of one system have a suffix.
        """
        for name in metrics:
            if name.startswith("num_nonfinite/"):
                system = name.partition("/")[2]
                if self._is_mostly_nonfinite(metrics[name]):
                    fault = self._describe_share(metrics[name])
                    self._warn(system, f"Step {step}: {system}: {fault}.")
        self._fault = self._find_fault(metrics)
        self.num_faulty = self.num_faulty + num if self._fault else 0
        if self._fault:
            self._warn("", f"Step {step}: {self._fault}. {_REMEDY}")

    @property
    def is_over(self) -> bool:
        """Whether the run must stop."""
        return 0 < self._most <= self.num_faulty

    def complaint(self, saved: int | None) -> str:
        """Format the error message of a run that ends with faulty updates.

        Args:
            saved: Step of the last good checkpoint; `None` if there is none.
        """
        return (
            f"meta-training must make progress; in the last {self.num_faulty} updates, "
            f"{self._fault}. {_what_is_kept(saved)}"
        )

    def divergence(self, step: int, saved: int | None) -> str:
        """Format the error message of a run whose theta is not finite.

        Args:
            step: Step at which theta was checked.
            saved: Step of the last good checkpoint; `None` if there is none.
        """
        return (
            f"theta must be finite; at step {step}, it is not. {_what_is_kept(saved)}"
        )

    def _find_fault(self, metrics: Mapping[str, float]) -> str:
        if self._is_mostly_nonfinite(metrics.get("num_nonfinite", 0.0)):
            return self._describe_share(metrics["num_nonfinite"])
        if not math.isfinite(metrics["grad_norm"]):
            return "the meta-gradient was not finite"
        return "the meta-gradient was zero" if metrics["grad_norm"] == 0 else ""

    def _is_mostly_nonfinite(self, number: float) -> bool:
        return number > self._population / 2

    def _describe_share(self, number: float) -> str:
        return f"{number:.3g} of {self._population} members were not finite"

    def _warn(self, about: str, text: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            self._say(text)


def _what_is_kept(saved: int | None) -> str:
    kept = "there is none" if saved is None else f"step {saved}"
    return f"Nothing was exported. Last good checkpoint: {kept}. {_REMEDY}"
