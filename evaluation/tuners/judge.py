"""Evaluation of the outer parameters that a search found."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import PRNGKeyArray

from evaluation.tuners.episodes import OuterProblem
from evaluation.tuners.tuners import Found
from meta_train.outer.trainer import mean_losses
from tasks.base import Data


def judge(
    problem: OuterProblem,
    data: Data,
    history: Sequence[Found],
    num_runs: int,
    key: PRNGKeyArray,
    *,
    num_points: int = 10,
) -> dict[str, list[Any]]:
    """Evaluate the best `theta` so far at several points of a search.

    Args:
        problem: Outer problem.
        data: Data of `problem.system`.
        history: Intermediate results of the search; at least one.
        num_runs: Number of new episodes per point, the same for equal keys.
        key: Random key of the episodes.
        num_points: Maximum number of points.

    Returns:
        Inner steps and meta-losses of the points; a non-finite loss is `None`.
    """
    rows = np.unique(np.linspace(0, len(history) - 1, num_points).astype(int))
    kept = [history[i] for i in rows]

    def score(theta):
        systems, horizon = (problem.system,), problem.horizon
        return float(mean_losses(systems, (data,), theta, horizon, num_runs, key)[0])

    losses = [score(each.theta) for each in kept]
    return {
        "num_steps": [each.num_steps for each in kept],
        "losses": [loss if np.isfinite(loss) else None for loss in losses],
    }
