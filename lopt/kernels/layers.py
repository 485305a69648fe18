"""Dense layers of per-parameter networks, in forms that suit different lowerings."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array

Layers: TypeAlias = Sequence[tuple[Any, Any]]
"""Pairs of a kernel of shape (outputs, inputs) and a bias, with ReLUs between layers.

Entries are arrays, or refs inside a Pallas kernel."""
Apply: TypeAlias = Callable[[Sequence[Array], Layers], Sequence[Array]]
"""Function that applies layers to one array per input; one array per output."""

MAX_UNROLLED_WEIGHTS = 256  # Largest number of weights in a kernel that is unrolled.
_TERMS_PER_SUM = 8  # Number of terms in a sequential partial sum.


def apply_matmul(
    rows: Sequence[Array], layers: Layers, *, sum_first_layer: bool = False
) -> Sequence[Array]:
    """Apply layers as matrix products.

    Args:
        rows: One array per input, of broadcastable shapes.
        layers: Layers to apply.
        sum_first_layer: Whether to compute a small first layer as a sum over its inputs
            instead of a matrix product. The sum fuses with the features and the ReLU
            and runs on all cores, which pays off for large blocks.
    """
    shape = jnp.broadcast_shapes(*(row.shape for row in rows))
    *before, (kernel, bias) = layers
    if sum_first_layer and before and before[0][0].size <= MAX_UNROLLED_WEIGHTS:
        (first, offsets), *before = before

        def along(x):
            return x.reshape(-1, *[1] * len(shape))

        terms = [along(first[:, i]) * row[None] for i, row in enumerate(rows)]
        total = jnp.broadcast_to(sum(terms, along(offsets)), (len(first), *shape))
        x = jax.nn.relu(total).reshape(len(first), -1)
    else:
        x = jnp.stack([jnp.broadcast_to(row, shape).reshape(-1) for row in rows])
    for hidden in before:
        x = jax.nn.relu(hidden[0] @ x + hidden[1][:, None])
    # Adding the biases row by row lets each fuse into the consumer of its row.
    return [row.reshape(shape) + b for row, b in zip(kernel @ x, bias, strict=True)]


def apply_with_unrolled_output(
    rows: Sequence[Array], layers: Layers, *, sum_first_layer: bool = False
) -> Sequence[Array]:
    """Apply all layers but the last as matrix products.

    The last layer has few outputs. It is unrolled, so that it fuses with the ReLU
    before it.
    """
    hidden = apply_matmul(rows, layers[:-1], sum_first_layer=sum_first_layer)
    return apply_unrolled(hidden, layers[-1:], is_first=False)


def apply_unrolled(
    rows: Sequence[Array], layers: Layers, *, is_first: bool = True
) -> Sequence[Array]:
    """Apply layers unrolled into scalar multiply-adds.

    A ReLU precedes each layer except the first; with `is_first=False` it precedes the
    first as well.
    """
    for i, (kernel, bias) in enumerate(layers):
        rows = rows if is_first and not i else [jnp.maximum(row, 0.0) for row in rows]
        rows = [_unit(rows, kernel, bias, j) for j in range(bias.shape[0])]
    return rows


def _unit(rows: Sequence[Array], kernel: Any, bias: Any, j: int) -> Array:
    # Sum broadcast rows, which are smaller, before full-size ones.
    order = sorted(range(len(rows)), key=lambda i: rows[i].size)
    sums = [bias[j]]
    for count, i in enumerate(order):
        term = kernel[j, i] * rows[i]
        # Partial sums of a few terms are independent: shorter dependency chains.
        is_next = count % _TERMS_PER_SUM and rows[i].shape == sums[-1].shape
        sums[-1:] = [sums[-1] + term] if is_next else [sums[-1], term]
    return functools.reduce(jnp.add, sums)
