"""Recorded results of the jobs of an experiment, and comparisons between methods."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class Records:
    """Results by name of the job.

    The result of a meta-training run has the keys ``metrics``, the columns of its
    metrics by name, and ``theta``, the final theta as a flat list, if it is small.
    """

    found: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.found[name]

    def of(self, method: str) -> list[Any]:
        """Results of all seeds of a method."""
        return [r for name, r in self.found.items() if name.startswith(f"{method}/")]

    def curve(
        self, method: str, metric: str = "meta_loss"
    ) -> tuple[Float[np.ndarray, " points"], Float[np.ndarray, "seeds points"]]:
        """Outer steps and values of a metric for each seed, where it was logged.

        Values that are not finite are infinite.
        """
        rows, steps = [], np.zeros(0)
        for run in self.of(method):
            metrics = {k: np.asarray(v, float) for k, v in run["metrics"].items()}
            # The first line has the metrics of evaluations, the others all metrics.
            kept = np.ones(len(metrics["step"]), bool)
            if metric == "loss":
                kept[0] = False
            steps = metrics["step"][kept]
            values = metrics[metric][kept]
            rows.append(np.where(np.isfinite(values), values, np.inf))
        return steps, np.asarray(rows)

    def final(self, method: str, metric: str = "meta_loss") -> np.ndarray:
        """Last value of a metric for each seed."""
        return self.curve(method, metric)[1][:, -1]

    def tail(
        self, method: str, metric: str = "meta_loss", share: float = 0.1
    ) -> Float[np.ndarray, " seeds"]:
        """Mean over the last `share` of the points of a curve, for each seed."""
        values = self.curve(method, metric)[1]
        return values[:, -max(1, round(share * values.shape[1])) :].mean(axis=1)

    def best(self, methods: Iterable[str]) -> str:
        """Method with the lowest mean final meta-loss, such as the best of a grid."""
        return min(methods, key=lambda method: self.final(method).mean())

    def path(self, method: str, names: Sequence[str]) -> Float[np.ndarray, "..."]:
        """Trajectories of numbers of theta, of shape ``(seeds, points, names)``."""
        columns = [self.curve(method, name)[1] for name in names]
        return np.stack(columns, axis=-1)

    def __iter__(self) -> Iterator[str]:
        return iter(self.found)


def is_lower(
    ours: Float[np.ndarray, " seeds"], theirs: Float[np.ndarray, " seeds"]
) -> bool | None:
    """Compare two methods over seeds.

    Returns:
        True if every seed of ours is below every seed of theirs, False if every seed
        is at or above, and `None` if the seeds overlap. With three seeds each, either
        happens by chance with a probability of 1 in 20.
    """
    if np.max(ours) < np.min(theirs):
        return True
    return False if np.min(ours) >= np.max(theirs) else None


def first_below(
    steps: Float[np.ndarray, " points"],
    curves: Float[np.ndarray, "seeds points"],
    level: float,
) -> Float[np.ndarray, " seeds"]:
    """First step at which each curve is below a level; infinite if none is."""
    below = curves < level
    return np.where(below.any(axis=1), steps[below.argmax(axis=1)], np.inf)


def settled(
    steps: Float[np.ndarray, " points"],
    curves: Float[np.ndarray, "seeds points"],
    level: float,
) -> Float[np.ndarray, " seeds"]:
    """First step from which on each curve stays below a level; infinite if none."""
    above = ~(curves < level)
    last = curves.shape[1] - 1 - above[:, ::-1].argmax(axis=1)
    following = np.append(steps, np.inf)[np.where(above.any(axis=1), last + 1, 0)]
    return following


def spread(values: Sequence[float] | np.ndarray, digits: int = 3) -> str:
    """Format the mean over seeds and their range."""
    array = np.asarray(values, float)
    mean, low, high = array.mean(), array.min(), array.max()
    if low == high:
        return f"{mean:.{digits}g}"
    return f"{mean:.{digits}g} [{low:.{digits}g}, {high:.{digits}g}]"
