"""JAX primitive of elementwise functions: evaluation, batching and derivatives.

The function is a single primitive until lowering, which is fast to trace and to batch.
It is differentiated as matrix products, because derivatives of unrolled layers would
take minutes to compile.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import ad, batching
from jaxtyping import Array, PyTree

from lopt.kernels.layers import MAX_UNROLLED_WEIGHTS, Apply, apply_matmul

Function: TypeAlias = Callable[[Apply, Sequence[Array], PyTree], Array]
Features: TypeAlias = Callable[[Sequence[Array]], Sequence[Array]]

elementwise_p = Primitive("elementwise")


def bind(
    function: Function | Features,
    arrays: Sequence[Array],
    weights: PyTree[Array],
    *,
    is_reduction: bool,
) -> Array:
    """Bind the primitive.

    Args:
        function: Hashable elementwise function.
        arrays: Arrays that are broadcastable to the tensor's shape, of equal rank.
        weights: Pytree of arrays that all elements share.
        is_reduction: Whether to return the mean square of each array that `function`
            returns, instead of its single result.
    """
    leaves, treedef = jax.tree.flatten(weights)
    return elementwise_p.bind(
        *_varying_alike([*arrays, *leaves]),
        function=function,
        num_arrays=len(arrays),
        treedef=treedef,
        is_reduction=is_reduction,
        num_batch=0,
    )


def _varying_alike(operands: Sequence[Array]) -> list[Array]:
    """Cast operands to vary over the same manual axes inside a `shard_map`."""
    own = [jax.typeof(x).manual_axis_type.varying for x in operands]
    all_axes = frozenset().union(*own)
    return [
        jax.lax.pcast(x, tuple(all_axes - axes), to="varying") if axes < all_axes else x
        for x, axes in zip(operands, own, strict=True)
    ]


def call_whole(apply, *operands, num_batch, **params):
    """Call the function on whole tensors."""
    if num_batch:
        inner = functools.partial(call_whole, apply, num_batch=num_batch - 1, **params)
        axes = [None if x.shape[0] == 1 else 0 for x in operands]
        if all(axis is None for axis in axes):
            return inner(*(x[0] for x in operands))[None]
        kept = [x[0] if a is None else x for x, a in zip(operands, axes, strict=True)]
        return jax.vmap(inner, axes)(*kept)
    arrays, weights = split_operands(operands, **params)
    if params["is_reduction"]:
        found = params["function"](arrays)
        return jnp.stack([jnp.mean(jnp.square(x)) for x in found])
    return params["function"](apply, arrays, weights)


def split_operands(operands, *, num_arrays, treedef, **_):
    """Split the operands of the primitive into arrays and the pytree of weights."""
    return operands[:num_arrays], treedef.unflatten(operands[num_arrays:])


def has_narrow_layers(
    operands: Sequence[Any], *, num_arrays: int, num_batch: int, **_: Any
) -> bool:
    """Check whether all kernels among the weights are small enough to unroll."""
    kernels = [x.shape[num_batch:] for x in operands[num_arrays:]]
    return max(map(math.prod, kernels), default=0) <= MAX_UNROLLED_WEIGHTS


@elementwise_p.def_impl
def _(*operands, **params):
    return _call_compiled(*operands, **params)


STATIC_PARAMS = ("function", "num_arrays", "treedef", "is_reduction", "num_batch")


@functools.partial(jax.jit, static_argnames=STATIC_PARAMS)
def _call_compiled(*operands, **params):
    # Operands are concrete under `jax.disable_jit` and `jax.debug_nans`.
    if not any(isinstance(x, Tracer) for x in operands):
        return lower_plain(*operands, **params)
    return elementwise_p.bind(*operands, **params)


def lower_plain(*operands, **params):
    """Call the function on whole tensors, with layers as matrix products."""
    return call_whole(apply_matmul, *operands, **params)


@elementwise_p.def_abstract_eval
def _(*operands, **params):
    like = jax.eval_shape(functools.partial(lower_plain, **params), *operands)
    return operands[0].update(shape=like.shape, dtype=like.dtype)


def _batch(operands: Sequence[Any], axes: Sequence[Any], *, num_batch: int, **params):
    moved = [
        x[None] if a is None else jnp.moveaxis(x, a, 0)
        for x, a in zip(operands, axes, strict=True)
    ]
    return elementwise_p.bind(*moved, num_batch=num_batch + 1, **params), 0


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params):
    plain = functools.partial(lower_plain, **params)
    return jax.jvp(plain, primals, tuple(map(ad.instantiate_zeros, tangents)))


def is_for_export(ctx: Any) -> bool:
    """Check whether a program is lowered for `jax.export`."""
    return ctx.module_context.lowering_parameters.for_export


def is_on_one_device(ctx: Any) -> bool:
    """Check whether operands are unsharded, or local inside a `shard_map`."""
    context = ctx.module_context.axis_context
    if mesh := getattr(context, "mesh", None):  # Inside a `shard_map`.
        return set(context.manual_axes) == set(mesh.axis_names)
    return context.num_devices == 1


batching.primitive_batchers[elementwise_p] = _batch
ad.primitive_jvps[elementwise_p] = _jvp
