"""A per-parameter MLP (Metz et al., 2019, arXiv:1810.10180; the PES paper's)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray
from typing_extensions import override

from lopt.base import LearnedOptimizer, NumSteps, Theta
from lopt.features import MOMENTUM_DECAYS, TIME_SCALES, rms_scale, time_features
from lopt.pointwise import pointwise_mlp

_MAGNITUDE_SCALE = 1e-3


class MLPState(NamedTuple):
    """Steps taken, and for every decay one tree like the parameters."""

    step: Int[Array, ""]
    momenta: tuple[optax.Params, ...]
    second_moments: tuple[optax.Params, ...]


class _Network(nn.Module):
    """Dense layers on rows: one row a feature, one column a parameter."""

    widths: tuple[int, ...]
    num_features: int

    @override
    @nn.compact
    def __call__(
        self, features: Sequence[Float[Array, " n"]], time: Float[Array, " time"]
    ) -> Sequence[Float[Array, " n"]]:
        num_inputs = (self.num_features + time.size, *self.widths)
        layers = [
            self._layer(i, num_inputs[i], width)
            for i, width in enumerate((*self.widths, 2))
        ]
        # The scales and the time features are the same for the whole tensor, so they
        # go into the weights: no normalised copy of the features is ever made.
        scales = jnp.stack([rms_scale(row) for row in features])
        kernel, bias = layers[0]
        layers[0] = (
            kernel[: self.num_features] * scales[:, None],
            bias + time @ kernel[self.num_features :],
        )
        return pointwise_mlp(features, layers)

    def _layer(self, i: int, num_inputs: int, width: int) -> tuple[Array, Array]:
        init = nn.initializers.lecun_normal()
        return (
            self.param(f"kernel_{i}", init, (num_inputs, width), jnp.float32),
            self.param(f"bias_{i}", nn.initializers.zeros, (width,), jnp.float32),
        )


@dataclass(frozen=True)
class PerParameterMLP(LearnedOptimizer):
    """Maps gradient, parameter, momenta and time to each parameter's step.

    The network sees every scalar alone: 19 inputs and 1,762 weights by default.
    """

    width: int = 32
    """Units in each hidden layer."""
    depth: int = 2
    """Number of hidden layers."""
    second_moment_decays: tuple[float, ...] = ()
    """Each adds 7 inputs: the momenta over the root of this second moment, and the
    inverse root itself."""
    step_scale: float = 1e-3
    """Size of a step when the network's output is one."""

    def __post_init__(self):
        if self.width < 1 or self.depth < 1:
            raise ValueError(
                "`width` and `depth` must be at least 1; "
                f"got width={self.width}, depth={self.depth}."
            )
        if not all(0 <= decay < 1 for decay in self.second_moment_decays):
            raise ValueError(
                "`second_moment_decays` must lie in [0, 1); "
                f"got {self.second_moment_decays}. Try 0.999."
            )

    @property
    def num_features(self) -> int:
        """Inputs per parameter, the time features aside."""
        num_momenta = len(MOMENTUM_DECAYS)
        return 2 + num_momenta + len(self.second_moment_decays) * (num_momenta + 1)

    @property
    def _network(self) -> _Network:
        return _Network((self.width,) * self.depth, self.num_features)

    @override
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        features = [jnp.zeros(1, jnp.float32)] * self.num_features
        time = jnp.zeros(len(TIME_SCALES), jnp.float32)
        return self._network.init(key, features, time)

    @override
    def as_optax(
        self, theta: Theta, num_steps: NumSteps
    ) -> optax.GradientTransformationExtraArgs:
        del num_steps  # the time features count steps, not shares of a run

        def init(params):
            zeros = lambda x: jnp.zeros(x.shape, jnp.float32)
            return MLPState(
                step=jnp.zeros((), jnp.int32),
                momenta=tuple(jax.tree.map(zeros, params) for _ in MOMENTUM_DECAYS),
                second_moments=tuple(
                    jax.tree.map(zeros, params) for _ in self.second_moment_decays
                ),
            )

        def update(updates, state, params=None, **extra_args):
            del extra_args
            if params is None:
                raise ValueError(
                    "This optimizer reads the parameters: call "
                    "`update(grads, state, params)`."
                )
            momenta = tuple(
                _update_moment(updates, m, decay, order=1)
                for m, decay in zip(state.momenta, MOMENTUM_DECAYS, strict=True)
            )
            second_moments = tuple(
                _update_moment(updates, v, decay, order=2)
                for v, decay in zip(
                    state.second_moments, self.second_moment_decays, strict=True
                )
            )
            time = time_features(state.step)
            num_momenta = len(momenta)

            def step(grad, param, *moments):
                features = _features(
                    grad, param, moments[:num_momenta], moments[num_momenta:]
                )
                direction, log_magnitude = cast(
                    Sequence[Array], self._network.apply(theta, features, time)
                )
                size = self.step_scale * jnp.exp(_MAGNITUDE_SCALE * log_magnitude)
                return (-size * direction).reshape(grad.shape).astype(grad.dtype)

            updates = jax.tree.map(step, updates, params, *momenta, *second_moments)
            step_count = cast(Array, optax.safe_increment(state.step))
            return updates, MLPState(step_count, momenta, second_moments)

        return optax.GradientTransformationExtraArgs(init, update)


def _update_moment(grads, moment, decay: float, order: int):
    return jax.tree.map(
        lambda g, m: decay * m + (1 - decay) * g.astype(jnp.float32) ** order,
        grads,
        moment,
    )


def _features(grad, param, momenta, second_moments) -> list[Float[Array, " n"]]:
    """Returns what is known of each parameter of a tensor, not yet normalised."""
    rows = [grad.astype(jnp.float32), param.astype(jnp.float32), *momenta]
    for v in second_moments:
        inverse_root = 1.0 / jnp.sqrt(v + 1e-6)
        rows += [m * inverse_root for m in momenta] + [inverse_root]
    return [row.reshape(-1) for row in rows]
