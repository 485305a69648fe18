"""Partitioning of elementwise functions over the shards of a tensor.

Native code, kernels and loops over blocks are opaque to the XLA partitioner, and it
would all-gather their inputs. A custom partitioning rule declares that they are
elementwise.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float


def in_shards(
    call: Callable[..., Float[Array, "..."]],
    arrays: Sequence[Float[Array, "..."]],
    weights: Sequence[Float[Array, "..."]],
    *,
    is_reduction: bool,
) -> Float[Array, "..."]:
    """Call ``call(*arrays, *weights)`` on each device with its shards of the arrays.

    Args:
        call: Elementwise function of the arrays, or means of one over all elements.
        arrays: Arrays that are broadcastable to the tensor's shape, of equal rank.
        weights: Arrays that are replicated on all devices.
        is_reduction: Whether `call` returns a vector of means over all elements. The
            means of the shards are then averaged by an all-reduce.

    Returns:
        An array sharded like the tensor, or a replicated vector if `is_reduction`.
    """
    shape = jnp.broadcast_shapes(*(x.shape for x in arrays))
    whole = next((i for i, x in enumerate(arrays) if x.shape == shape), 0)

    def partition(mesh, operands, result):
        spec = (operands[whole] if is_reduction else result).sharding.spec
        if is_reduction:
            # Only shards of equal size may be averaged without weights.
            def is_even(n, s):
                return n % math.prod(mesh.shape[x] for x in _names(s)) == 0

            spec = [
                s if is_even(n, s) else None for n, s in zip(shape, spec, strict=True)
            ]

        def own(x):
            return PartitionSpec(
                *(s if n > 1 else None for n, s in zip(x.shape, spec, strict=True))
            )

        specs = [*map(own, operands[: len(arrays)]), *[PartitionSpec()] * len(weights)]
        out = PartitionSpec() if is_reduction else result.sharding.spec

        def place(spec):
            return NamedSharding(mesh, spec)

        axes = tuple(x for s in spec for x in _names(s)) if is_reduction else ()
        share = functools.partial(_share_p.bind, call=call, axes=axes)
        return mesh, share, place(out), tuple(map(place, specs))

    split = custom_partitioning(call)
    split.def_partition(
        partition, sharding_rule=_rule(shape, arrays, weights, is_reduction)
    )
    return split(*arrays, *weights)


# Computation on one shard. It is a single primitive because JAX would shard its
# operations again under a mesh with explicit axes.
_share_p = Primitive("share")


@_share_p.def_abstract_eval
def _(*operands, call, axes):
    like = jax.eval_shape(call, *operands)
    return ShapedArray(like.shape, like.dtype)


def _lower_share(ctx, *operands, call, axes):
    def compute(*operands):
        found = call(*operands)
        return jax.lax.pmean(found, axes) if axes else found

    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        return mlir.lower_fun(compute, multiple_results=False)(ctx, *operands)


mlir.register_lowering(_share_p, _lower_share)


def _names(entry: Any) -> tuple[str, ...]:
    """List the mesh axes in one entry of a `PartitionSpec`."""
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def _rule(
    shape: Sequence[int],
    arrays: Sequence[Any],
    weights: Sequence[Any],
    is_reduction: bool,
) -> str:
    """Write the einsum-like Shardy rule that relates operand and result axes."""
    whole = [f"d{i}" for i in range(len(shape))]
    others = (f"o{i}" for i in itertools.count())
    terms = [
        [
            name if n > 1 else next(others)
            for name, n in zip(whole, x.shape, strict=True)
        ]
        for x in arrays
    ]
    terms += [[next(others) for _ in w.shape] for w in weights]
    result = [next(others)] if is_reduction else whole
    return ", ".join(map(" ".join, terms)) + " -> " + " ".join(result)
