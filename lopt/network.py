"""The small network that is applied to every parameter: its weights and its step."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from lopt.base import Theta
from lopt.pointwise import Layers

_MAGNITUDE_SCALE = 1e-3


class _Weights(nn.Module):
    """Kernels and biases of dense layers."""

    sizes: tuple[int, ...]

    @override
    @nn.compact
    def __call__(self) -> list[tuple[Array, Array]]:
        return [
            (
                self.param(f"kernel_{i}", _normal, (num_inputs, width), jnp.float32),
                self.param(f"bias_{i}", nn.initializers.zeros, (width,), jnp.float32),
            )
            for i, (num_inputs, width) in enumerate(
                zip(self.sizes, self.sizes[1:], strict=False)
            )
        ]


_normal = nn.initializers.lecun_normal()


def check_sizes(width: int, depth: int) -> None:
    """Raises unless there is a hidden layer, and units in it."""
    if width < 1 or depth < 1:
        raise ValueError(
            f"`width` and `depth` must be at least 1; got width={width}, depth={depth}."
        )


def init_layers(sizes: Sequence[int], key: PRNGKeyArray) -> Theta:
    """Samples the weights of dense layers from `sizes[0]` inputs to `sizes[-1]`."""
    return _Weights(tuple(sizes)).init(key)


def layers_of(theta: Theta) -> list[tuple[Array, Array]]:
    """Returns kernels and biases, from the first layer to the last."""
    weights = theta["params"]
    names = [f"{i}" for i in range(len(weights) // 2)]
    return [(weights[f"kernel_{i}"], weights[f"bias_{i}"]) for i in names]


def fold(
    theta: Theta,
    scales: Sequence[Float[Array, ""]],
    constants: Float[Array, " constants"],
) -> Layers:
    """Returns the layers for features as they come, of one tensor.

    Their scales, and the inputs that all parameters of the tensor have in common, go
    into the first layer: no normalised copy of the features is ever made.
    """
    (kernel, bias), *rest = layers_of(theta)
    scaled = kernel[: len(scales)] * jnp.stack(scales)[:, None]
    return [(scaled, bias + constants @ kernel[len(scales) :]), *rest]


def step(outputs: Sequence[Float[Array, "*n"]]) -> Float[Array, "*n"]:
    """Returns direction times magnitude: ``d exp(1e-3 a)``."""
    direction, log_magnitude, *_ = outputs
    return direction * jnp.exp(_MAGNITUDE_SCALE * log_magnitude)
