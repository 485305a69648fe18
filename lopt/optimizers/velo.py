"""VeLO as released (Metz et al., 2022, arXiv:2211.09760)."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from lopt.adapter import LeafInputs
from lopt.base import Theta
from lopt.errors import UserError
from lopt.optimizers.adafactor_features import (
    AccumulatorOptimizer,
    Decays,
    Definition,
    in_single_precision,
    update_accumulators,
)
from lopt.optimizers.features import mean_square, root_mean_square
from lopt.optimizers.lstm_optimizer import (
    ReleasedLSTMOptimizer,
    TensorLSTM,
    check_lstm_sizes,
    clipped_log,
    mixed_step,
)
from lopt.optimizers.network import check_sizes

RELEASED = Definition(is_extended=True, vector_epsilons=(1e-9, 0.0))
DECAYS = in_single_precision(Decays())
_NUM_RANKS = 5


@dataclass(frozen=True)
class VeLO(AccumulatorOptimizer, ReleasedLSTMOptimizer):
    """Per-tensor LSTM that mixes the weights of a per-parameter MLP, as released.

    `HyperLSTM` is the variant of this package. The update is ``step_scale * s * rms * d
    * exp(1e-3 * a)`` with step size ``s`` from the LSTM, the RMS of the tensor, and
    direction ``d`` and log-magnitude ``a`` from the mixed MLP. Tensors that are zero
    hardly move. By default it has 46,337 weights. With the sizes of the trained VeLO
    (512 units, 256 banks, `mixture_scale` 100) it has 2,320,385.
    """

    num_statistics: ClassVar[int] = 7 + _NUM_RANKS

    lstm_width: int = 64
    """Units in the LSTM of a tensor."""
    num_banks: int = 32
    """Number of MLPs whose weights are mixed."""
    width: int = 4
    """Units in each hidden layer of an MLP."""
    depth: int = 2
    """Number of hidden layers of an MLP."""
    step_scale: float = 1e-3
    """Multiplier of the network's outputs, relative to the RMS of the tensor."""
    mixture_scale: float = 1.0
    """Multiplier of the mean over banks; 100 for the trained VeLO."""

    def __post_init__(self):
        check_sizes(self.width, self.depth)
        check_lstm_sizes(self.lstm_width, self.num_banks)
        if not self.mixture_scale > 0:
            raise UserError(
                f"`mixture_scale` must be positive; got {self.mixture_scale}. Try 1."
            )

    @override
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        share = self.mixture_scale / self.num_banks
        return self._init_with_banks(key, self.width, self.depth, share)

    @property
    @override
    def _network(self) -> TensorLSTM:
        # Initial updates are about 1% of the RMS of the tensor.
        return TensorLSTM(self.lstm_width, self.num_banks, 10.0, has_mean=False)

    @override
    def _accumulate(self, state, grad):
        return update_accumulators(state, grad, DECAYS)

    @override
    def _statistics(self, tensor: LeafInputs, state) -> Float[Array, "12"]:
        """Compute statistics of the accumulators before this step.

        These are clipped logarithms of the second moment's mean, the momenta's
        variances and the second moment's mean squared difference from the mean of each
        momentum, all relative to the RMS of the tensor, and between them a one-hot
        encoding of the rank (axes of size 1 excluded).
        """
        param, before = tensor.param, tensor.state
        scale = jax.lax.rsqrt(jnp.maximum(1e-9, mean_square(param)))
        momenta = [m * scale for m in before.momenta]
        second_moment = before.second_moment * scale
        variances = [jnp.var(m) for m in momenta]
        offsets = [mean_square(second_moment - jnp.mean(m)) for m in momenta]
        numbers = jnp.stack([jnp.mean(second_moment), *variances, *offsets])
        logs = clipped_log(numbers)
        rank = np.arange(_NUM_RANKS) == sum(size > 1 for size in param.shape)
        return jnp.concatenate([logs[:1], jnp.asarray(rank, jnp.float32), logs[1:]])

    @override
    def _step(self, theta, tensor, controls, step_size, info):
        shares = controls * (self.mixture_scale / self.num_banks)
        scale = -self.step_scale * step_size * root_mean_square(tensor.param)
        return mixed_step(theta["banks"], shares, tensor, RELEASED, scale)
