"""SGD, momentum and Adam (Kingma and Ba, 2015) with learned hyperparameters."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree
from typing_extensions import override

from lopt.base import Theta
from lopt.errors import UserError
from lopt.features import zeros_like
from lopt.learned_schedule import (
    Schedule,
    check_schedule,
    init_schedule,
    learning_rate,
)
from lopt.tensors import Clock, Tensor, TensorOptimizer, TensorState

_INITIAL_L2 = 1e-4
_EPSILON = 1e-8


@dataclass(frozen=True)
class _Classical(TensorOptimizer):
    """Steps against a direction at a learned rate; which direction, subclasses say.

    Theta is a dictionary of numbers by name: rates and the L2 coefficient as
    logarithms, decays as logits, so that they lie in (0, 1) wherever theta is moved.
    """

    schedule: Schedule = "constant"
    """How the learning rate moves in a run; before meta-training it stands still."""
    num_blocks: int = 0
    """Tensors, in the order of the flattened tree, if each has its own rates, decays
    and L2; 0 for one setting for all."""
    l2: bool = False
    """Whether each parameter times a learned coefficient is added to its gradient."""
    initial_lr: float = 0.01
    """Learning rate before meta-training."""

    _initial_decays: ClassVar[Mapping[str, float]] = {}

    @abstractmethod
    def _direction(
        self, theta: Theta, grad: Float[Array, "..."], state: TensorState
    ) -> tuple[Float[Array, "..."], TensorState]:
        """Returns what a tensor steps against, and its new state."""

    def __post_init__(self):
        check_schedule(self.schedule, self.initial_lr)
        if self.num_blocks < 0:
            raise UserError(
                "`num_blocks` must be the number of tensors, or 0 for one setting for "
                f"all; got {self.num_blocks}. Try 0."
            )

    @property
    @override
    def reads_params(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether `update` must be given the parameters: L2 is of them."""
        return self.l2

    @override
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        numbers = init_schedule(self.schedule, self.initial_lr)
        for name, decay in self._initial_decays.items():
            numbers[f"logit_{name}"] = math.log(decay / (1 - decay))
        if self.l2:
            numbers["log_l2"] = math.log(_INITIAL_L2)
        shape = (self.num_blocks,) if self.num_blocks else ()
        return {name: jnp.full(shape, x, jnp.float32) for name, x in numbers.items()}

    @override
    def init_shared(self, num_tensors: int) -> PyTree[Array]:
        # A tree of no tensors fits any: `optax.tree.map_params` asks with one.
        if num_tensors and self.num_blocks not in (0, num_tensors):
            raise UserError(
                "`num_blocks` must be the number of tensors, as each has a setting of "
                f"its own; got num_blocks={self.num_blocks} and {num_tensors} tensors. "
                f"Try {num_tensors}, or 0 for one setting for all."
            )
        return ()

    @override
    def update_tensors(
        self, theta: Theta, tensors: Sequence[Tensor], shared: PyTree, clock: Clock
    ) -> tuple[list[tuple[Array, TensorState]], PyTree]:
        missing = self.num_blocks > len(tensors)
        if missing and any(tensor.param is None for tensor in tensors):
            raise UserError(
                "with `num_blocks` and tensors that have no gradient, the parameters "
                "must tell which those are; got none. Call `update(grads, state, "
                "params)`."
            )
        results = []
        for grad, param, state, i, _ in tensors:
            own = {k: x[i] for k, x in theta.items()} if self.num_blocks else theta
            if self.l2:
                grad = grad + jnp.exp(own["log_l2"]) * cast(Array, param)
            direction, state = self._direction(own, grad, state)
            rate = learning_rate(self.schedule, own, clock.progress)
            results.append((-rate * direction, state))
        return results, ()


@dataclass(frozen=True)
class LearnedSGD(_Classical):
    """Gradient descent with a learned schedule and L2."""

    @override
    def init_tensor(self, param):
        return ()

    @override
    def _direction(self, theta, grad, state):
        return grad, ()


@dataclass(frozen=True)
class LearnedMomentum(_Classical):
    """Gradient descent with Polyak's momentum: learned decay, schedule and L2."""

    _initial_decays: ClassVar[Mapping[str, float]] = {"decay": 0.9}

    @override
    def init_tensor(self, param):
        return zeros_like(param)

    @override
    def _direction(self, theta, grad, state):
        trace = jax.nn.sigmoid(theta["logit_decay"]) * state + grad
        return trace, trace


class AdamState(NamedTuple):
    """Averages of a tensor's gradients and of their squares, and over how many.

    It counts for itself: the clock stands still past the horizon, bias does not.
    """

    num_updates: Int[Array, ""]
    first: Float[Array, "..."]
    second: Float[Array, "..."]


@dataclass(frozen=True)
class LearnedAdam(_Classical):
    """Adam with learned decays, schedule and L2."""

    initial_lr: float = 1e-3
    """Learning rate before meta-training."""

    _initial_decays: ClassVar[Mapping[str, float]] = {
        "first_decay": 0.9,
        "second_decay": 0.999,
    }

    @override
    def init_tensor(self, param):
        count = jnp.zeros((), jnp.int32)
        return AdamState(count, zeros_like(param), zeros_like(param))

    @override
    def _direction(self, theta, grad, state):
        count = cast(Array, optax.safe_increment(state.num_updates))
        first = _average(state.first, grad, theta["logit_first_decay"])
        second = _average(state.second, grad**2, theta["logit_second_decay"])
        unbiased = first / _total_weight(count, theta["logit_first_decay"])
        root = _root(second / _total_weight(count, theta["logit_second_decay"]))
        return unbiased / (root + _EPSILON), AdamState(count, first, second)


def _average(old: Array, new: Array, logit: Float[Array, ""]) -> Array:
    """Returns a moving average after one more value."""
    # One minus a decay near one would have lost its digits; this has not.
    return jax.nn.sigmoid(logit) * old + jax.nn.sigmoid(-logit) * new


def _total_weight(count: Int[Array, ""], logit: Float[Array, ""]) -> Float[Array, ""]:
    """Returns the weight of all values in an average: ``1 - decay**count``."""
    return -jnp.expm1(count.astype(jnp.float32) * jax.nn.log_sigmoid(logit))


def _root(square: Array) -> Array:
    """Returns the square root; at zero with a derivative of zero, not infinity."""
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)
