"""Blockwise evaluation of elementwise functions, with intermediates in cache."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Arrays: TypeAlias = Sequence[Float[Array, "..."]]


class Blocks(NamedTuple):
    """Partition of a tensor into blocks of equal shape.

    Attributes:
        shape: Shape of the tensor.
        block: Shape of each block. The last block along an axis overlaps the one before
            it if the axis is not a multiple of the block size.
    """

    shape: tuple[int, ...]
    block: tuple[int, ...]

    @classmethod
    def of(cls, shape: Sequence[int], room: int) -> "Blocks":
        """Choose blocks of at most `room` elements.

        Trailing axes are kept whole as far as they fit. An axis that does not fit is
        divided evenly.
        """
        block = []
        for n in reversed(shape):
            num_blocks = -(-n // max(1, room))
            block.insert(0, -(-n // num_blocks))
            room //= block[0]
        return cls(tuple(shape), tuple(block))

    @property
    def num(self) -> int:
        """Number of blocks."""
        return math.prod(self._counts)

    @property
    def _counts(self) -> list[int]:
        return [-(-n // b) for n, b in zip(self.shape, self.block, strict=True)]

    def map(
        self,
        function: Callable[[Arrays], Float[Array, "..."]],
        arrays: Arrays,
        *,
        shared: bool,
    ) -> Float[Array, "..."]:
        """Apply an elementwise function block by block.

        Args:
            function: Maps blocks of the arrays to a block of the result.
            arrays: Arrays that are broadcastable to the tensor's shape, of equal rank.
            shared: Whether to split each block over all cores. XLA fuses computing and
                writing a block into one operation, which it does not parallelize.
                Therefore each block is written one iteration after it is computed.

        Returns:
            An array of the tensor's shape.
        """

        def find(i):
            return function(self._take(arrays, i))

        def write(i, out, found):
            return jax.lax.dynamic_update_slice(out, found, self._place(i)[0])

        dtype = jax.eval_shape(find, 0).dtype
        empty = _zeros(self.shape, dtype, arrays)
        if not shared:

            def now(i, out):
                return write(i, out, find(i))

            return jax.lax.fori_loop(0, self.num, now, empty)

        def later(i, carry):
            return (write(jnp.maximum(i - 1, 0), *carry), find(i))

        none = _zeros(self.block, dtype, arrays)
        carry = jax.lax.fori_loop(0, self.num, later, (empty, none))
        return write(self.num - 1, *carry)

    def sums(
        self, function: Callable[[Arrays], Arrays], arrays: Arrays
    ) -> Float[Array, " sums"]:
        """Sum each result of an elementwise function over the tensor, block by block.

        Args:
            function: Maps blocks of the arrays to a sequence of blocks.
            arrays: Arrays that are broadcastable to the tensor's shape, of equal rank.
        """

        def rows(i):
            found, new = function(self._take(arrays, i)), self._place(i)[1]
            return jnp.stack([jnp.sum(jnp.where(new, x, 0.0), -1) for x in found])

        # Row sums are reduced after the loop, because XLA parallelizes a reduction over
        # rows but not a reduction to a scalar.
        like = jax.eval_shape(rows, 0)

        def add(i, totals):
            return totals + rows(i)

        none = _zeros(like.shape, like.dtype, arrays)
        totals = jax.lax.fori_loop(0, self.num, add, none)
        return jnp.sum(totals, range(1, totals.ndim))

    def _place(self, i: Array | int) -> tuple[list[Array], Bool[Array, "..."]]:
        """Compute the start of block `i`, and a mask without overlapping elements."""
        starts, new = [], jnp.ones((1,) * len(self.shape), bool)
        for axis, count in reversed(list(enumerate(self._counts))):
            n, size = self.shape[axis], self.block[axis]
            i, position = i // count, i % count
            begin = position * size
            starts.insert(0, jnp.minimum(begin, n - size))
            if n % size:
                sizes = [size if a == axis else 1 for a in range(len(self.shape))]
                where = starts[0] + jax.lax.broadcasted_iota(jnp.int32, sizes, axis)
                new = new & (where >= begin)
        return starts, new

    def _take(self, arrays: Arrays, i: Array | int) -> Arrays:
        starts, _ = self._place(i)

        def take(x):
            sizes = [min(n, b) for n, b in zip(x.shape, self.block, strict=True)]
            at = [s if n > 1 else 0 for n, s in zip(x.shape, starts, strict=True)]
            return jax.lax.dynamic_slice(x, at, sizes)

        return [take(x) for x in arrays]


def _zeros(shape: Sequence[int], dtype: Any, arrays: Arrays) -> Float[Array, "..."]:
    """Create zeros that vary over the same `shard_map` axes as the first array."""
    axes = tuple(jax.typeof(arrays[0]).manual_axis_type.varying)
    zeros = jnp.zeros(shape, dtype)
    return jax.lax.pcast(zeros, axes, to="varying") if axes else zeros
