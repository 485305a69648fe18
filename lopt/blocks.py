"""A tensor in blocks: what is computed of one of them at a time stays in the cache."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Arrays: TypeAlias = Sequence[Float[Array, "..."]]


class Blocks(NamedTuple):
    """How a tensor is divided.

    Attributes:
        shape: Of the tensor.
        block: The shape of every block; the last ones overlap those before them.
    """

    shape: tuple[int, ...]
    block: tuple[int, ...]

    @classmethod
    def of(cls, shape: Sequence[int], room: int) -> "Blocks":
        """Takes the last dimensions, as far as they fit; what is cut is cut evenly."""
        block = []
        for n in reversed(shape):
            num_blocks = -(-n // max(1, room))
            block.insert(0, -(-n // num_blocks))
            room //= block[0]
        return cls(tuple(shape), tuple(block))

    @property
    def num(self) -> int:
        """How many there are."""
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
        """Calls the function on the same block of all arrays; joins what it returns.

        Args:
            function: Returns a block.
            arrays: Of the shape of the tensor, or 1 where they do not change along it.
            shared: Whether all cores are to have a share of a block. The compiler makes
                computing and writing one operation, which it does not split; so each
                block is written in the round after the one in which it is computed.
        """
        find = lambda i: function(self._take(arrays, i))

        def write(i, out, found):
            return jax.lax.dynamic_update_slice(out, found, self._place(i)[0])

        dtype = jax.eval_shape(find, 0).dtype
        empty = _zeros(self.shape, dtype, arrays)
        if not shared:
            now = lambda i, out: write(i, out, find(i))
            return jax.lax.fori_loop(0, self.num, now, empty)
        later = lambda i, carry: (write(jnp.maximum(i - 1, 0), *carry), find(i))
        none = _zeros(self.block, dtype, arrays)
        carry = jax.lax.fori_loop(0, self.num, later, (empty, none))
        return write(self.num - 1, *carry)

    def sums(
        self, function: Callable[[Arrays], Arrays], arrays: Arrays
    ) -> Float[Array, " sums"]:
        """Returns the sums, over the tensor, of each array that the function returns.

        Args:
            function: Returns blocks.
            arrays: Of the shape of the tensor, or 1 where they do not change along it.
        """

        def rows(i):
            found, new = function(self._take(arrays, i)), self._place(i)[1]
            return jnp.stack([jnp.sum(jnp.where(new, x, 0.0), -1) for x in found])

        # Rows are added up at last: cores have a share of them, and not of one number.
        like = jax.eval_shape(rows, 0)
        add = lambda i, totals: totals + rows(i)
        none = _zeros(like.shape, like.dtype, arrays)
        totals = jax.lax.fori_loop(0, self.num, add, none)
        return jnp.sum(totals, range(1, totals.ndim))

    def _place(self, i: Array | int) -> tuple[list[Array], Bool[Array, "..."]]:
        """Returns where a block begins, and which of its elements are new."""
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
    """Returns zeros that differ between the devices of a shard_map as arrays do."""
    axes = tuple(jax.typeof(arrays[0]).manual_axis_type.varying)
    zeros = jnp.zeros(shape, dtype)
    return jax.lax.pcast(zeros, axes, to="varying") if axes else zeros
