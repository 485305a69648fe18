"""Weights and output of the small MLP that is applied to each parameter."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from lopt.base import Theta
from lopt.kernels.elementwise import Layers

_MAGNITUDE_SCALE = 1e-3


class _Weights(nn.Module):
    """Kernels and biases of dense layers with the given `sizes`."""

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
    """Validate that `width` and `depth` are at least 1."""
    if width < 1 or depth < 1:
        raise ValueError(
            f"`width` and `depth` must be at least 1; got width={width}, depth={depth}."
        )


def init_layers(
    sizes: Sequence[int], key: PRNGKeyArray, *, copied_input: int | None = None
) -> Theta:
    """Initialize the weights of an MLP.

    Kernels are LeCun normal and biases are zero.

    Args:
        sizes: Sizes of the input, of each hidden layer and of the output.
        key: PRNG key.
        copied_input: Index of an input, such as the momentum, that the first output
            copies at initialization. The optimizer then descends before meta-training.
            The input passes through two units of each hidden layer, as
            ``x = relu(x) - relu(-x)``, and the other weights of the last layer are
            scaled by 0.1. Ignored if a hidden layer has fewer than two units.

    Returns:
        ``{"params": {"kernel_0": ..., "bias_0": ..., "kernel_1": ..., ...}}``, where
        kernels have shape (inputs, outputs).
    """
    theta = _Weights(tuple(sizes)).init(key)
    if copied_input is None or min(sizes[1:-1]) < 2:
        return theta
    weights: dict[str, Any] = dict(theta["params"])
    last = f"kernel_{len(sizes) - 2}"
    rows = jnp.asarray([copied_input, copied_input])
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
    """List the (kernel, bias) pairs of `theta`, first layer first."""
    weights = theta["params"]
    names = [f"{i}" for i in range(len(weights) // 2)]
    return [(weights[f"kernel_{i}"], weights[f"bias_{i}"]) for i in names]


def fold_normalization(
    theta: Theta,
    squares: Float[Array, " features"],
    constants: Float[Array, " constants"],
    epsilon: float = 1e-5,
) -> Layers:
    """Fold feature normalization and constant inputs into the first layer.

    The returned layers apply to unnormalized features of one tensor, so no normalized
    copy of the features is materialized.

    Args:
        theta: Weights of a network whose inputs are features of unit RMS, followed by
            constants.
        squares: Mean square of each feature over the tensor.
        constants: Inputs that all parameters of the tensor share.
        epsilon: Constant that is added to `squares`.

    Returns:
        Layers whose kernels have shape (outputs, inputs), for `elementwise`.
    """
    (kernel, bias), *rest = layers_of(theta)
    num = squares.shape[0]
    scaled = kernel[:num] * jax.lax.rsqrt(epsilon + squares)[:, None]
    first = scaled, bias + constants @ kernel[num:]
    return [(kernel.T, bias) for kernel, bias in (first, *rest)]


def linear(
    kernel: Float[Array, "inputs outputs"],
    x: Float[Array, "inputs ..."],
    bias: Float[Array, "outputs ..."] | None = None,
) -> Float[Array, "outputs ..."]:
    """Apply a dense layer along the first axis; other axes keep shape and sharding."""
    found = jnp.tensordot(kernel, x, ((0,), (0,)))
    return found if bias is None else found + along_first(bias, x.ndim)


def along_first(x: Float[Array, "n ..."], ndim: int) -> Float[Array, "n ..."]:
    """Reshape (n,) or (n, 1) to (n, 1, ..., 1) with `ndim` axes."""
    return x.reshape(x.shape[0], *[1] * (ndim - 1))


def step(
    outputs: Sequence[Float[Array, "*n"]], scale: Float[Array, ""]
) -> Float[Array, "*n"]:
    """Compute ``scale * d * exp(1e-3 * a)`` from direction d and log-magnitude a."""
    direction, log_magnitude, *_ = outputs
    return scale * direction * jnp.exp(_MAGNITUDE_SCALE * log_magnitude)
