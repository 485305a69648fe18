"""The small network that is applied to every parameter: its weights and its step."""

from collections.abc import Sequence
from typing import Any

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


def init_layers(
    sizes: Sequence[int], key: PRNGKeyArray, *, follow: int | None = None
) -> Theta:
    """Samples the weights of dense layers from `sizes[0]` inputs to `sizes[-1]`.

    Args:
        sizes: Of the input, of every hidden layer and of the output.
        key: Fixes the weights.
        follow: An input that the first output is to follow, such as the momentum: the
            optimizer then descends before it is trained. It goes through two units of
            every hidden layer, as ``x = relu(x) - relu(-x)``, and the random weights of
            the last layer begin at a tenth of their size.
    """
    theta = _Weights(tuple(sizes)).init(key)
    if follow is None or min(sizes[1:-1]) < 2:
        return theta
    weights: dict[str, Any] = dict(theta["params"])
    last = f"kernel_{len(sizes) - 2}"
    rows = jnp.asarray([follow, follow])
    signs = jnp.asarray([[1.0, 0.0], [0.0, -1.0]], jnp.float32)
    for i in range(len(sizes) - 2):
        straight = jnp.zeros((sizes[i], 2), jnp.float32).at[rows].add(signs)
        weights[f"kernel_{i}"] = weights[f"kernel_{i}"].at[:, :2].set(straight)
        rows, signs = jnp.arange(2), jnp.eye(2, dtype=jnp.float32)
    empty = jnp.zeros((2, sizes[-1]), jnp.float32)
    first = empty.at[0, 0].set(1.0).at[1, 0].set(-1.0)
    weights[last] = (0.1 * weights[last]).at[:2].set(first)
    return {"params": weights}


def layers_of(theta: Theta) -> list[tuple[Array, Array]]:
    """Returns kernels and biases, from the first layer to the last."""
    weights = theta["params"]
    names = [f"{i}" for i in range(len(weights) // 2)]
    return [(weights[f"kernel_{i}"], weights[f"bias_{i}"]) for i in names]


def fold(
    theta: Theta,
    squares: Float[Array, " features"],
    constants: Float[Array, " constants"],
) -> Layers:
    """Returns the layers for features as they come, of one tensor.

    What brings them to unit RMS, and the inputs that all parameters of the tensor have
    in common, go into the first layer: no normalised copy is ever made.

    Args:
        theta: The weights for normalised features, then constants.
        squares: The mean square of each feature.
        constants: What all parameters of the tensor have in common.
    """
    (kernel, bias), *rest = layers_of(theta)
    num = squares.shape[0]
    scaled = kernel[:num] * jax.lax.rsqrt(1e-5 + squares)[:, None]
    first = scaled, bias + constants @ kernel[num:]
    return [(kernel.T, bias) for kernel, bias in (first, *rest)]


def linear(
    kernel: Float[Array, "inputs outputs"],
    x: Float[Array, "inputs ..."],
    bias: Float[Array, "outputs ..."] | None = None,
) -> Float[Array, "outputs ..."]:
    """Applies a layer along the first axis; the others keep shape and sharding."""
    found = jnp.tensordot(kernel, x, ((0,), (0,)))
    return found if bias is None else found + along_first(bias, x.ndim)


def along_first(x: Float[Array, "n ..."], ndim: int) -> Float[Array, "n ..."]:
    """Returns a vector, or a column, as the first axis of `ndim`."""
    return x.reshape(x.shape[0], *[1] * (ndim - 1))


def step(
    outputs: Sequence[Float[Array, "*n"]], scale: Float[Array, ""]
) -> Float[Array, "*n"]:
    """Returns direction times magnitude, ``d exp(1e-3 a)``, times `scale`."""
    direction, log_magnitude, *_ = outputs
    return scale * direction * jnp.exp(_MAGNITUDE_SCALE * log_magnitude)
