"""Elementwise functions as Pallas kernels for TPUs (Mosaic)."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from lopt.kernels.layers import apply_unrolled

# Shape of a block. Each live value takes eight vector registers of shape (8, 128).
_ROWS, _COLUMNS = 8, 1024


def in_kernel(
    call: Callable[[Any, Sequence[Array], Sequence[Any]], Array],
    arrays: Sequence[Float[Array, "..."]],
    weights: Sequence[Float[Array, "..."]],
    *,
    interpret: bool = False,
) -> Float[Array, "..."]:
    """Compute ``call(apply, arrays, weights)`` block by block in one kernel.

    Each array is read once and only the result is written. Layers are unrolled into
    scalar multiply-adds, with weights in SMEM.

    Args:
        call: Elementwise function. Its first argument is a function that applies
            layers.
        arrays: Arrays that are broadcastable to the tensor's shape, of equal rank.
        weights: Arrays that all elements share. Scalars are passed to `call` as values,
            others as refs.
        interpret: Whether to run the kernel in Pallas's interpreter, for tests.

    Returns:
        An array of the tensor's shape.
    """
    shape = jnp.broadcast_shapes(*(x.shape for x in arrays))
    if len(shape) == 1:
        rows = [x[None, :] for x in arrays]
        return in_kernel(call, rows, weights, interpret=interpret)[0]
    *lead, num_rows, num_columns = shape
    block = [min(num_rows, _ROWS), min(num_columns, _COLUMNS)]
    grid = (*lead, *(-(-n // b) for n, b in zip(shape[-2:], block, strict=True)))

    def spec(x: Any) -> pl.BlockSpec:
        """Map grid indices to blocks of `x`, with index 0 along broadcast axes."""
        sizes = [min(n, b) for n, b in zip(x.shape[-2:], block, strict=True)]
        moves = [n > 1 for n in x.shape]

        def index(*place):
            return [p if m else 0 for p, m in zip(place, moves)]  # noqa: B905

        return pl.BlockSpec((*[None] * len(lead), *sizes), lambda *p: tuple(index(*p)))

    def kernel(*refs):
        *inputs, out = refs
        blocks = [ref[...] for ref in inputs[: len(arrays)]]
        scalars = [
            ref[0] if w.ndim == 0 else ref
            for ref, w in zip(inputs[len(arrays) :], weights, strict=True)
        ]
        out[...] = jnp.broadcast_to(call(apply_unrolled, blocks, scalars), out.shape)

    like = jax.ShapeDtypeStruct(shape, jnp.result_type(*arrays, *weights))
    whole = pl.BlockSpec(memory_space=pltpu.SMEM)
    return pl.pallas_call(
        kernel,
        grid=grid,
        in_specs=[*map(spec, arrays), *[whole] * len(weights)],
        out_specs=spec(like),
        out_shape=like,
        interpret=interpret,
    )(*arrays, *(w.reshape(1) if w.ndim == 0 else w for w in weights))
