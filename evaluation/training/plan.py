"""Settings of an evaluation, and the optimizers that it compares."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

import jax
import optax
from jaxtyping import Array, Key

import lopt
from evaluation.baselines import BASELINES, Fixed
from lopt.base import LearnedOptimizer, Theta
from lopt.errors import UserError

REFERENCE = "adam"
"""Baseline to which all others are compared."""

Bound: TypeAlias = tuple[LearnedOptimizer, Theta]
Contender: TypeAlias = (
    Bound
    | optax.GradientTransformation
    | Callable[[int], optax.GradientTransformation]
    | str
    | Path
)


class Plan(NamedTuple):
    """Settings of an evaluation.

    Attributes:
        num_seeds: Evaluation seeds for each optimizer and task.
        num_tuning_seeds: Separate seeds for tuning.
        seed: Seed from which the keys of all runs are derived.
        baselines: Names in `BASELINES`; the reference is always included.
        tuned: Names of contenders that are tuned like the baselines.
    """

    num_seeds: int = 20
    num_tuning_seeds: int = 3
    seed: int = 0
    baselines: tuple[str, ...] = tuple(BASELINES)
    tuned: tuple[str, ...] = ()

    def keys(self) -> Key[Array, " seeds"]:
        """Keys of the evaluation runs, unused in meta-training."""
        return self._keys(2**32 - 3, self.num_seeds)

    def tuning_keys(self) -> Key[Array, " seeds"]:
        """Keys of the tuning runs, distinct from `keys`."""
        return self._keys(2**32 - 4, self.num_tuning_seeds)

    def _keys(self, number: int, num: int) -> Key[Array, " seeds"]:
        # Meta-training does not fold in these numbers, so its keys differ even with
        # the same seed.
        key = jax.random.fold_in(jax.random.key(self.seed), number)
        return jax.random.split(key, num)


def bind(contender: Contender) -> Callable[[int], Bound]:
    """Normalize a contender to a function of the number of steps of a run.

    Args:
        contender: Optimizer in any of the accepted forms. Files are loaded here.

    Returns:
        Function from the number of steps to a learned optimizer and its `theta`.

    Raises:
        UserError: If `contender` has none of the accepted types.
    """
    if isinstance(contender, str | Path):
        loaded = lopt.load_theta(contender)
        return lambda num_steps: loaded
    if isinstance(contender, optax.GradientTransformation):
        return lambda num_steps: (Fixed(contender), ())
    if isinstance(contender, tuple) and isinstance(contender[0], LearnedOptimizer):
        return lambda num_steps: contender
    if callable(contender):
        return lambda num_steps: (Fixed(contender(num_steps)), ())
    raise UserError(
        "an optimizer must be an optax transformation, a function from the number of "
        "steps to one, a pair of a learned optimizer and its theta, or a file; got "
        f"{type(contender).__name__}."
    )
