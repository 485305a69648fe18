"""Base classes of optimizers with one LSTM per tensor."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree
from typing_extensions import override

from lopt.adapter import LeafInputs, StepInfo, TensorOptimizer, TensorState
from lopt.base import Theta
from lopt.errors import UserError
from lopt.optimizers.adafactor_features import (
    MOMENTUM,
    NUM_EXTENDED,
    Definition,
    apply_network,
)
from lopt.optimizers.loss_trend import (
    NUM_AVERAGES,
    LossTrend,
    init_trend,
    time_scales,
    trend_features,
    update_trend,
)
from lopt.optimizers.network import init_layers

_PROGRESS = (0.03, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.1)
_NUM_RUN_FEATURES = len(_PROGRESS) + NUM_AVERAGES - 1
_LARGEST_GRADIENT = 1000.0


class LSTMShared(NamedTuple):
    """State that is not specific to a parameter.

    Attributes:
        hidden: Hidden state of each tensor's LSTM.
        memory: Cell state of each tensor's LSTM.
        trend: Moving averages of the loss.
    """

    hidden: Float[Array, "tensors units"]
    memory: Float[Array, "tensors units"]
    trend: LossTrend


class TensorLSTM(nn.Module):
    """LSTM that maps tensor statistics to mixture coefficients and step sizes.

    Attributes:
        width: Units of the LSTM.
        num_banks: Number of mixture coefficients; may be zero.
        step_size: Second output before meta-training.
        has_mean: Whether the mean over all tensors is an input, besides the maximum.
    """

    width: int
    num_banks: int
    step_size: float
    has_mean: bool = True

    @override
    @nn.compact
    def __call__(
        self,
        statistics: Float[Array, "tensors statistics"],
        hidden: Float[Array, "tensors units"],
        memory: Float[Array, "tensors units"],
        is_first: Bool[Array, ""],
    ):
        own = nn.Dense(self.width, name="own")(statistics)
        largest = nn.relu(nn.Dense(self.width, name="largest")(statistics))
        inputs = own + largest.max(0, keepdims=True)
        # Released optimizers have a third layer whose result they do not use. It is
        # part of theta, so that files are imported completely.
        third = nn.Dense(self.width, name="mean" if self.has_mean else "unused")
        mean = nn.relu(third(statistics))
        if self.has_mean:
            inputs = inputs + mean.mean(0, keepdims=True)

        # The initial LSTM state is part of theta, which is not available when the
        # state is initialized. It is therefore inserted at the first step.
        shape = 2, self.width
        initial = self.param("initial", nn.initializers.zeros, shape, jnp.float32)
        hidden = jnp.where(is_first, initial[:1], hidden)
        memory = jnp.where(is_first, initial[1:], memory)
        # Flax's default recurrent initializer is orthogonal and calls LAPACK. Batched
        # LAPACK calls can deadlock on CPU.
        normal = nn.initializers.lecun_normal()
        cell = nn.OptimizedLSTMCell(
            self.width, recurrent_kernel_init=normal, name="lstm"
        )
        (memory, hidden), _ = cell((memory, hidden), inputs)

        # Zero kernels give all tensors the same MLP and step size at initialization.
        def head(size, start, name):
            return nn.Dense(
                size,
                kernel_init=nn.initializers.zeros,
                bias_init=nn.initializers.constant(start),
                name=name,
            )(hidden)

        controls = jnp.zeros((len(hidden), 0), jnp.float32)
        if self.num_banks:
            controls = head(self.num_banks, 1.0, "controls")
        step_sizes = head(1, self.step_size, "step_size")[:, 0]
        return controls, step_sizes, hidden, memory


class LSTMOptimizer(TensorOptimizer):
    """Learned optimizer with one LSTM per tensor, on the state of the run.

    The inputs of a tensor's LSTM are the training progress, the trend of the loss and
    statistics of the tensor. Its outputs are mixture coefficients and a step size. Part
    "network" of `theta` has its weights.
    """

    reads_loss: ClassVar[bool] = True
    num_statistics: ClassVar[int] = 0
    """Number of inputs that are specific to a tensor."""
    lstm_width: int

    @property
    @abstractmethod
    def _network(self) -> TensorLSTM:
        """The LSTM."""

    @abstractmethod
    def _follow(
        self, trend: LossTrend, info: StepInfo
    ) -> tuple[LossTrend, Float[Array, "9"]]:
        """Update the averages of the loss, and compute their features."""

    @abstractmethod
    def _accumulate(self, state: TensorState, grad: Float[Array, "..."]) -> TensorState:
        """Update the state of a tensor with its gradient."""

    @abstractmethod
    def _statistics(
        self, tensor: LeafInputs, state: TensorState
    ) -> Float[Array, " statistics"]:
        """Compute the inputs that are specific to a tensor.

        Args:
            tensor: Tensor with its clipped gradient and its previous state.
            state: New state of the tensor.
        """

    @abstractmethod
    def _step(
        self,
        theta: Theta,
        tensor: LeafInputs,
        controls: Float[Array, " banks"],
        step_size: Float[Array, ""],
        info: StepInfo,
    ) -> Float[Array, "..."]:
        """Compute the update of a tensor from its new state and the LSTM's outputs."""

    def _init_network(self, key: PRNGKeyArray) -> Theta:
        empty = jnp.zeros((1, self.lstm_width))
        statistics = jnp.zeros((1, _NUM_RUN_FEATURES + self.num_statistics))
        return self._network.init(key, statistics, empty, empty, jnp.asarray(True))

    def _init_with_banks(
        self, key: PRNGKeyArray, width: int, depth: int, share: float
    ) -> Theta:
        """Initialize the LSTM, and MLPs whose mixture follows the momentum.

        Args:
            key: PRNG key.
            width: Units in each hidden layer of an MLP.
            depth: Number of hidden layers of an MLP.
            share: Initial mixture coefficient of all MLPs.
        """
        network, sizes = self._network, (NUM_EXTENDED, *[width] * depth, 3)
        keys = jax.random.split(key, 2 + network.num_banks)
        banks = jax.vmap(lambda k: init_layers(sizes, k))(keys[2:])
        # Shift all banks equally, so that their initial mixture is `first`.
        first = init_layers(sizes, keys[0], copied_input=MOMENTUM + 1)
        mixture = mix(banks, jnp.full(network.num_banks, share, jnp.float32))
        shift = 1 / (network.num_banks * share)
        banks = jax.tree.map(
            lambda bank, a, b: bank + shift * (a - b)[None], banks, first, mixture
        )
        return {"banks": banks, "network": self._init_network(keys[1])}

    @override
    def init_shared(self, num_tensors: int) -> LSTMShared:
        shape = num_tensors, self.lstm_width
        hidden, memory = (jnp.zeros(shape, jnp.float32) for _ in range(2))
        return LSTMShared(hidden, memory, init_trend())

    @override
    def update_tensors(
        self,
        theta: Theta,
        tensors: Sequence[LeafInputs],
        shared: PyTree,
        info: StepInfo,
    ):
        if not tensors:
            return [], shared
        trend, loss_features = self._follow(shared.trend, info)
        rows, current = [], []
        for tensor in tensors:
            grad = jnp.clip(tensor.grad, -_LARGEST_GRADIENT, _LARGEST_GRADIENT)
            tensor = tensor._replace(grad=grad)
            state = self._accumulate(tensor.state, grad)
            statistics = self._statistics(tensor, state)
            parts = [_progress_features(info), loss_features, statistics]
            rows.append(jnp.concatenate(parts))
            current.append(tensor._replace(state=state))
        places = jnp.asarray([tensor.leaf_index for tensor in tensors])
        outputs: Any = self._network.apply(
            theta["network"],
            jnp.stack(rows),
            shared.hidden[places],
            shared.memory[places],
            info.count == 0,
        )
        controls, step_sizes, hidden, memory = outputs
        results = [
            (self._step(theta, tensor, control, size, info), tensor.state)
            for tensor, control, size in zip(current, controls, step_sizes, strict=True)
        ]
        return results, LSTMShared(
            shared.hidden.at[places].set(hidden),
            shared.memory.at[places].set(memory),
            trend,
        )


class ReleasedLSTMOptimizer(LSTMOptimizer):
    """Learned optimizer whose LSTM follows the loss as in VeLO and Celo.

    Unlike in `HyperLSTM`, losses are clipped, and the fastest average may be the one at
    the horizon.
    """

    @override
    def _follow(self, trend: LossTrend, info: StepInfo):
        assert info.loss is not None
        rates = -jnp.expm1(-1.0 / time_scales(info.num_steps))
        is_first = info.count == 0
        trend = update_trend(trend, info.loss, rates, is_first, is_clipped=True)
        return trend, trend_features(trend, info.count)


def _progress_features(info: StepInfo) -> Float[Array, "9"]:
    """Compute soft indicators of the fractions of the run that have passed."""
    return jnp.tanh(10.0 * (info.progress - jnp.asarray(_PROGRESS, jnp.float32)))


def clipped_log(x: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Compute logarithms of statistics of any size, in [-2.5, 2.5]."""
    return 0.5 * jnp.clip(jnp.log(1e-8 + jnp.abs(10.0 * x)), -5.0, 5.0)


def check_lstm_sizes(lstm_width: int, num_banks: int = 1) -> None:
    """Validate that `lstm_width` and `num_banks` are at least 1."""
    if lstm_width < 1 or num_banks < 1:
        raise UserError(
            "`lstm_width` and `num_banks` must be at least 1; got "
            f"lstm_width={lstm_width}, num_banks={num_banks}."
        )


def mix(banks: Theta, shares: Float[Array, " banks"]) -> Theta:
    """Mix the weights of one MLP: ``sum_i shares[i] * banks[i]``."""
    return jax.tree.map(lambda bank: jnp.tensordot(shares, bank, 1), banks)


def mixed_step(
    banks: Theta,
    shares: Float[Array, " banks"],
    tensor: LeafInputs,
    definition: Definition,
    scale: Float[Array, ""],
) -> Float[Array, "..."]:
    """Apply a mixed MLP to the features of a tensor."""
    constants = jnp.zeros(0, jnp.float32)
    return apply_network(
        mix(banks, shares),
        tensor.grad,
        tensor.param,
        tensor.state,
        constants,
        definition,
        scale,
    )
