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

from lopt.adapter import LeafInputs, StepInfo, TensorOptimizer, TensorState
from lopt.base import Theta
from lopt.errors import UserError, lookup
from lopt.optimizers.features import clipped, zeros_like
from lopt.optimizers.learning_rate import (
    Schedule,
    check_schedule,
    init_schedule,
    learning_rate,
)

_EPSILON = 1e-8


@dataclass(frozen=True)
class _Classical(TensorOptimizer):
    """Base class of optimizers with learned hyperparameters.

    The update is ``-lr_t * direction``; subclasses define the direction. `theta` maps
    names to arrays of shape ``()``, or ``(num_blocks,)``. Learning rates and the L2
    coefficient are stored as logarithms, and decays as logits. They are thus positive,
    or in (0, 1), for any `theta`.
    """

    schedule: Schedule = "constant"
    """Shape of the learning-rate schedule; constant before meta-training."""
    num_blocks: int = 0
    """Number of tensors, to learn separate hyperparameters for each, in the order of
    flattening. 0 to share one setting."""
    l2: bool = False
    """Whether to add L2 regularization with a learned coefficient to the gradient."""
    initial_lr: float = 0.01
    """Learning rate before meta-training."""
    initial_l2: float = 1e-4
    """L2 coefficient before meta-training."""
    initial_power: float = 0.0
    """Exponent of the power schedules before meta-training; positive for `log-power`,
    which learns its logarithm."""
    power_horizon: int = 0
    """Constant Q of the power schedules ``lr / (1 + t / Q)^power``; 0: the horizon."""
    fixed: tuple[str, ...] = ()
    """Entries of `theta` that keep their initial value and are not learned, such as
    ``logit_decay`` for a fixed momentum."""
    lr_range: tuple[float, float] | None = None
    """Range of initial learning rates, drawn log-uniformly per block; None: all start
    from `initial_lr`."""
    decay_range: tuple[float, float] | None = None
    """Range of initial decays, whose logits are drawn uniformly per block; None: the
    usual values, such as 0.9 for momentum."""

    _initial_decays: ClassVar[Mapping[str, float]] = {}

    @abstractmethod
    def _direction(
        self, theta: Theta, grad: Float[Array, "..."], state: TensorState
    ) -> tuple[Float[Array, "..."], TensorState]:
        """Compute the direction, to be scaled by ``-lr_t``, and the new state."""

    def __post_init__(self):
        check_schedule(self.schedule, self.initial_lr, self.initial_power)
        if self.num_blocks < 0:
            raise UserError(
                "`num_blocks` must be the number of tensors, or 0 for one setting for "
                f"all; got {self.num_blocks}. Try 0."
            )
        if not self.initial_l2 > 0 or self.power_horizon < 0:
            raise UserError(
                "`initial_l2` must be positive and `power_horizon` not negative; got "
                f"{self.initial_l2} and {self.power_horizon}. Try 1e-4 and 0."
            )
        for name in self.fixed:
            lookup(f"entry of theta of {type(self).__name__}", name, self._initial())
        if set(self._initial()) <= set(self.fixed):
            raise UserError(
                f"`fixed` must leave an entry of theta to learn; got {self.fixed}."
            )
        for name, limits in {"lr": self.lr_range, "decay": self.decay_range}.items():
            most = 1.0 if name == "decay" else math.inf
            if limits is not None and not 0 < limits[0] <= limits[1] < most:
                raise UserError(
                    f"`{name}_range` must be two increasing numbers between 0 and "
                    f"{most:g}; got {limits}. Try 0.01 0.9."
                )

    def _initial(self) -> dict[str, float]:
        """Initial value of each hyperparameter, learned or fixed, by name."""
        numbers = init_schedule(self.schedule, self.initial_lr, self.initial_power)
        for name, decay in self._initial_decays.items():
            numbers[f"logit_{name}"] = _logit(decay)
        if self.l2:
            numbers["log_l2"] = math.log(self.initial_l2)
        return numbers

    def _range(self, name: str) -> tuple[float, float] | None:
        """Range from which the initial value of an entry of theta is drawn, if any."""
        if name == "log_lr" and self.lr_range is not None:
            return math.log(self.lr_range[0]), math.log(self.lr_range[1])
        if name.startswith("logit_") and self.decay_range is not None:
            return _logit(self.decay_range[0]), _logit(self.decay_range[1])
        return None

    @property
    @override
    def reads_params(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether `update` requires the parameters; only L2 regularization does."""
        return self.l2

    @override
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        shape = (self.num_blocks,) if self.num_blocks else ()
        theta = {}
        for i, (name, value) in enumerate(self._initial().items()):
            if name in self.fixed:
                continue
            theta[name] = jnp.full(shape, value, jnp.float32)
            if limits := self._range(name):
                own = jax.random.fold_in(key, i)
                theta[name] = jax.random.uniform(own, shape, jnp.float32, *limits)
        return theta

    @override
    def init_shared(self, num_tensors: int) -> PyTree[Array]:
        # An empty pytree is valid: `optax.tree.map_params` calls `init` with one.
        if num_tensors and self.num_blocks not in (0, num_tensors):
            raise UserError(
                "`num_blocks` must be the number of tensors, as each has a setting of "
                f"its own; got num_blocks={self.num_blocks} and {num_tensors} tensors. "
                f"Try {num_tensors}, or 0 for one setting for all."
            )
        return ()

    @override
    def update_tensors(
        self,
        theta: Theta,
        tensors: Sequence[LeafInputs],
        shared: PyTree,
        info: StepInfo,
    ) -> tuple[list[tuple[Array, TensorState]], PyTree]:
        missing = self.num_blocks > len(tensors)
        if missing and any(tensor.param is None for tensor in tensors):
            raise UserError(
                "with `num_blocks` and tensors that have no gradient, the parameters "
                "must tell which those are; got none. Call `update(grads, state, "
                "params)`."
            )
        initial = self._initial()
        constant = {
            name: jnp.asarray(initial[name], jnp.float32) for name in self.fixed
        }
        progress = info.progress
        if self.power_horizon and self.schedule in ("power", "log-power"):
            progress = info.step.astype(jnp.float32) / self.power_horizon
        results = []
        for grad, param, state, i, *_ in tensors:
            own = {k: x[i] for k, x in theta.items()} if self.num_blocks else theta
            own = {**own, **constant}
            if self.l2:
                grad = grad + jnp.exp(own["log_l2"]) * cast(Array, param)
            direction, state = self._direction(own, grad, state)
            rate = learning_rate(self.schedule, own, progress)
            results.append((-rate * direction, state))
        return results, ()


@dataclass(frozen=True)
class LearnedSGD(_Classical):
    """SGD with a learned schedule and optional L2 regularization."""

    clips_gradients: ClassVar[bool] = False

    @override
    def init_tensor(self, param):
        return ()

    @override
    def _direction(self, theta, grad, state):
        return grad, ()


@dataclass(frozen=True)
class LearnedMomentum(_Classical):
    """SGD with momentum (Polyak): learned decay, schedule and optional L2.

    The direction is the trace ``m_t = decay * m_{t-1} + g_t``.
    """

    clips_gradients: ClassVar[bool] = False
    _initial_decays: ClassVar[Mapping[str, float]] = {"decay": 0.9}

    @override
    def init_tensor(self, param):
        return zeros_like(param)

    @override
    def _direction(self, theta, grad, state):
        trace = jax.nn.sigmoid(theta["logit_decay"]) * state + grad
        return trace, trace


class AdamState(NamedTuple):
    """Accumulators of one tensor.

    Attributes:
        num_updates: Number of updates of this tensor, for bias correction. Unlike
            `StepInfo.step`, it is not clamped at the horizon.
        first: Moving average of the gradients.
        second: Moving average of the squared gradients.
    """

    num_updates: Int[Array, ""]
    first: Float[Array, "..."]
    second: Float[Array, "..."]


@dataclass(frozen=True)
class LearnedAdam(_Classical):
    """Adam with learned decays, a learned schedule and optional L2 regularization."""

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
        grad = clipped(grad)
        count = cast(Array, optax.safe_increment(state.num_updates))
        first = _average(state.first, grad, theta["logit_first_decay"])
        second = _average(state.second, grad**2, theta["logit_second_decay"])
        unbiased = first / _total_weight(count, theta["logit_first_decay"])
        root = _root(second / _total_weight(count, theta["logit_second_decay"]))
        return unbiased / (root + _EPSILON), AdamState(count, first, second)


def _logit(share: float) -> float:
    return math.log(share / (1 - share))


def _average(old: Array, new: Array, logit: Float[Array, ""]) -> Array:
    """Update an exponential moving average whose decay is ``sigmoid(logit)``."""
    # For decays near one, sigmoid(-logit) avoids the cancellation in 1 - decay.
    return jax.nn.sigmoid(logit) * old + jax.nn.sigmoid(-logit) * new


def _total_weight(count: Int[Array, ""], logit: Float[Array, ""]) -> Float[Array, ""]:
    """Compute Adam's bias correction, ``1 - decay**count``."""
    return -jnp.expm1(count.astype(jnp.float32) * jax.nn.log_sigmoid(logit))


def _root(square: Array) -> Array:
    """Compute the square root, with derivative 0 instead of infinity at 0."""
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)
