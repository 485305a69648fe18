"""A small MLP on every parameter of a tensor alone: the same layers, many columns."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Float

_WRITTEN_OUT = 128


def pointwise_mlp(
    rows: Sequence[Float[Array, " n"]],
    layers: Sequence[tuple[Float[Array, "_ _"], Float[Array, " _"]]],
) -> Sequence[Float[Array, " n"]]:
    """Applies dense layers, with ReLUs between them, to each column of `rows`.

    Args:
        rows: One for every input; one column for every parameter.
        layers: A kernel and a bias each.

    Returns:
        One row for every output of the last layer.
    """
    operands = [*rows, *(x for layer in layers for x in layer)]
    if max(kernel.size for kernel, _ in layers) > _WRITTEN_OUT:
        return _product(*operands, num_rows=len(rows))
    return _narrow_p.bind(*operands, num_rows=len(rows))


# Narrow layers are written out term by term when they are compiled for a CPU, which
# then fuses layers and features into one loop over the parameters: 2.4 times less CPU
# time for 8 units than with matrix products. Until then they are one operation:
# hundreds of terms a tensor take longer to trace and to batch than to compile, and
# their derivatives take minutes.
_narrow_p = Primitive("narrow_pointwise_mlp")
_narrow_p.multiple_results = True


def _written_out(*operands, num_rows):
    rows, layers = _split(operands, num_rows)
    for i, (kernel, bias) in enumerate(layers):
        rows = [jnp.maximum(row, 0.0) for row in rows] if i else rows
        rows = [
            _unit(rows, kernel[..., j : j + 1], bias[..., j : j + 1])
            for j in range(bias.shape[-1])
        ]
    return rows


def _unit(rows, weights, total):
    for i, row in enumerate(rows):
        total = total + weights[..., i, :] * row
    return total


def _product(*operands, num_rows):
    rows, layers = _split(operands, num_rows)
    x = jnp.stack(rows, axis=-2)
    for i, (kernel, bias) in enumerate(layers):
        x = jax.nn.relu(x) if i else x
        x = jnp.swapaxes(kernel, -1, -2) @ x + bias[..., None]
    return [x[..., i, :] for i in range(x.shape[-2])]


def _split(operands, num_rows):
    rows, weights = operands[:num_rows], operands[num_rows:]
    return rows, list(zip(weights[::2], weights[1::2], strict=True))


@_narrow_p.def_impl
def _(*operands, num_rows):
    return _compiled(*operands, num_rows=num_rows)


@partial(jax.jit, static_argnames="num_rows")
def _compiled(*operands, num_rows):
    return _narrow_p.bind(*operands, num_rows=num_rows)


@_narrow_p.def_abstract_eval
def _(*operands, num_rows):
    dtype = jnp.result_type(*operands)
    return [operands[0].update(dtype=dtype)] * operands[-1].shape[-1]


def _batch(operands: Sequence[Any], axes: Sequence[int | None], num_rows: int):
    size = next(
        x.shape[a] for x, a in zip(operands, axes, strict=True) if a is not None
    )
    # Weights that are shared stay so: a leading axis of one broadcasts.
    repeats = [size] * num_rows + [1] * (len(operands) - num_rows)
    moved = [
        jnp.broadcast_to(x, (n, *x.shape)) if a is None else jnp.moveaxis(x, a, 0)
        for x, a, n in zip(operands, axes, repeats, strict=True)
    ]
    results = _narrow_p.bind(*moved, num_rows=num_rows)
    return results, [0] * len(results)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], num_rows: int):
    product = partial(_product, num_rows=num_rows)
    return jax.jvp(product, primals, tuple(map(ad.instantiate_zeros, tangents)))


batching.primitive_batchers[_narrow_p] = _batch
ad.primitive_jvps[_narrow_p] = _jvp
mlir.register_lowering(_narrow_p, mlir.lower_fun(_product, multiple_results=True))
mlir.register_lowering(
    _narrow_p, mlir.lower_fun(_written_out, multiple_results=True), platform="cpu"
)
