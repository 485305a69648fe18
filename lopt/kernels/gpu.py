"""Elementwise functions as Pallas kernels for GPUs (Triton)."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float, Int

# Parameters per block. A layer of 32 units then takes 32 values per thread.
_BLOCK = 128
_SMALLEST = 16  # Smallest matrix dimension that `triton.dot` supports.


def in_kernel(
    call: Callable[[Any, Sequence[Array], Sequence[Any]], Array],
    arrays: Sequence[Float[Array, "..."]],
    weights: Sequence[Float[Array, "..."]],
    *,
    interpret: bool = False,
) -> Float[Array, "..."]:
    """Compute ``call(apply, arrays, weights)`` block by block in one kernel.

    Each array is read once and only the result is written.

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
    size = math.prod(shape)

    def kernel(*refs):
        *inputs, out = refs
        elements = pl.program_id(0) * _BLOCK + jnp.arange(_BLOCK)
        is_inside = elements < size
        blocks = [
            triton.load(
                ref.at[_find(elements, x.shape, shape)], mask=is_inside, other=1
            )
            for ref, x in zip(inputs[: len(arrays)], arrays, strict=True)
        ]
        scalars = [
            ref[0] if w.ndim == 0 else ref
            for ref, w in zip(inputs[len(arrays) :], weights, strict=True)
        ]
        found = jnp.broadcast_to(call(_apply, blocks, scalars), elements.shape)
        triton.store(out.at[elements], found.astype(out.dtype), mask=is_inside)

    return pl.pallas_call(
        kernel,
        grid=(-(-size // _BLOCK),),
        out_shape=jax.ShapeDtypeStruct((size,), jnp.result_type(*arrays, *weights)),
        compiler_params=triton.CompilerParams(),
        interpret=interpret,
    )(
        *(x.reshape(-1) for x in arrays),
        *(w.reshape(1) if w.ndim == 0 else w for w in weights),
    ).reshape(shape)


def _apply(
    rows: Sequence[Float[Array, " block"]], layers: Sequence[tuple[Any, Any]]
) -> Sequence[Float[Array, " block"]]:
    """Apply the first and last layer as sums, and those between as matrix products."""
    (kernel, bias), *between, (last, offsets) = layers

    def column(ref, *index):
        return _read(ref, *index)[:, None]

    x = column(bias, None)
    for i, row in enumerate(rows):
        x = x + column(kernel, None, i) * row[None]
    for kernel, bias in between:
        product = triton.dot(
            _read(kernel, None, None), jax.nn.relu(x), allow_tf32=False
        )
        x = product + column(bias, None)
    x = jax.nn.relu(x)
    outputs = range(offsets.shape[0])
    return [jnp.sum(column(last, j, None) * x, axis=0) + offsets[j] for j in outputs]


def _read(ref: Any, *index: int | None) -> Float[Array, "..."]:
    """Load weights from a ref, zero-padded to powers of two.

    Args:
        ref: Kernel or bias.
        *index: One entry per axis: an index, or `None` to load the whole axis, padded
            to a power of two that is at least `_SMALLEST`.
    """
    sizes = [n for n, i in zip(ref.shape, index, strict=True) if i is None]
    places, is_inside = [], jnp.bool_(True)
    for axis, n in enumerate(sizes):
        padded = max(_SMALLEST, pl.next_power_of_2(n))
        along = [-1 if a == axis else 1 for a in range(len(sizes))]
        places.append(jnp.arange(padded).reshape(along))
        is_inside = is_inside & (places[-1] < n)
    places = iter(places)
    where = tuple(next(places) if i is None else i for i in index)
    return triton.load(ref.at[where], mask=is_inside, other=0.0)


def _find(
    elements: Int[Array, " block"], shape: Sequence[int], whole: Sequence[int]
) -> Int[Array, " block"]:
    """Convert flat indices of the tensor to flat indices of a broadcast array.

    Args:
        elements: Flat indices into the tensor.
        shape: Shape of the array, broadcastable to `whole`.
        whole: Shape of the tensor.
    """
    if tuple(shape) == tuple(whole):
        return elements
    found, stride = jnp.zeros_like(elements), 1
    for own, num in zip(reversed(shape), reversed(whole), strict=True):
        if own > 1:
            found += elements % num * stride
        elements, stride = elements // num, stride * own
    return found
