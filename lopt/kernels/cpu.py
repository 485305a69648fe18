"""CPU lowering: matrix products, unrolled layers, native code, blocks or shards."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.interpreters import mlir

from lopt.kernels import native
from lopt.kernels.blocks import Blocks
from lopt.kernels.layers import (
    apply_matmul,
    apply_unrolled,
    apply_with_unrolled_output,
)
from lopt.kernels.native.program import compile_function
from lopt.kernels.partitioning import in_shards
from lopt.kernels.primitive import (
    Features,
    call_whole,
    elementwise_p,
    has_narrow_layers,
    is_for_export,
    is_on_one_device,
    split_operands,
)

# Block sizes in parameters. The activations of a small block stay in the cache of one
# core. A large block is split over cores, which pays off for large tensors.
_SMALL_BLOCK, _LARGE_BLOCK, _LARGE_TENSOR = 640, 16_384, 2**17
# Number of elements, batch axes included, from which unrolled layers are worth their
# compile time.
_MIN_UNROLLED_SIZE = 2**15


def lower_on_cpu(ctx: Any, *operands: Any, **params: Any) -> Any:
    """Lower to the form that suits the network, the tensor and its sharding."""
    is_narrow = has_narrow_layers(ctx.avals_in, **params)
    is_large_enough = max(x.size for x in ctx.avals_in) >= _MIN_UNROLLED_SIZE
    summed = functools.partial(apply_matmul, sum_first_layer=is_narrow)
    apply = apply_unrolled if is_narrow and is_large_enough else summed
    form = functools.partial(call_whole, apply)
    if is_heavy(ctx.avals_in, **params):
        if is_on_one_device(ctx):
            form = _find_native_program(ctx, **params) or _lower_in_blocks
        elif _can_be_split(ctx, **params):
            form = _lower_in_shards
    return mlir.lower_fun(form, multiple_results=False)(ctx, *operands, **params)


def is_heavy(operands: Sequence[Any], *, num_batch: int, **params: Any) -> bool:
    """Check whether native code, blocks or shards pay off for a call.

    Narrow networks fuse with the surrounding operations, but on large tensors XLA
    materializes too many intermediates.
    """
    sizes = [math.prod(x.shape[num_batch:]) for x in operands]
    is_narrow = has_narrow_layers(operands, num_batch=num_batch, **params)
    is_empty = not all(x.size for x in operands)
    return not is_empty and (not is_narrow or max(sizes) >= _LARGE_TENSOR)


def _can_be_split(ctx: Any, *, num_batch: int, **_: Any) -> bool:
    """Check whether the call can be partitioned over devices by `in_shards`."""
    context = ctx.module_context
    is_known = getattr(jax.config, "jax_use_shardy_partitioner", True)
    mesh = getattr(context.axis_context, "abstract_mesh", None)
    is_local = mesh is not None and not is_for_export(ctx)
    return is_known and is_local and not num_batch


def _lower_in_shards(*operands, **params):
    call = functools.partial(elementwise_p.bind, **params)
    num = params["num_arrays"]
    arrays, weights = operands[:num], operands[num:]
    return in_shards(call, arrays, weights, is_reduction=params["is_reduction"])


def _find_native_program(
    ctx: Any, *, function: Any, num_arrays: int, num_batch: int, **params: Any
) -> Callable[..., Any] | None:
    """Compile the function for native code, or return `None` if that is unsupported."""
    is_single = all(x.dtype == jnp.float32 for x in ctx.avals_in)
    # Exported programs may run on machines without the native library.
    if not is_single or is_for_export(ctx) or not native.is_available():
        return None
    shapes = tuple(x.shape[num_batch:] for x in ctx.avals_in[num_arrays:])
    program = compile_function(function, num_arrays, shapes=shapes, **params)
    return program and functools.partial(_lower_to_native_code, program)


def _lower_to_native_code(program, *operands, num_arrays, num_batch, is_reduction, **_):
    return native.call(
        program,
        operands,
        num_arrays=num_arrays,
        num_batch=num_batch,
        is_reduction=is_reduction,
    )


def _lower_in_blocks(*operands, num_batch, **params):
    """Call the function on the blocks of the tensor in a sequential loop."""
    if num_batch:  # Loop over the batch: each element may have its own weights.
        inner = functools.partial(_lower_in_blocks, num_batch=num_batch - 1, **params)
        size = max(x.shape[0] for x in operands)

        def pick(i):
            return [x[i if x.shape[0] > 1 else 0] for x in operands]

        return jax.lax.map(lambda i: inner(*pick(i)), jnp.arange(size))
    arrays, weights = split_operands(operands, **params)
    shape = cast(tuple[int, ...], jnp.broadcast_shapes(*(x.shape for x in arrays)))
    function = params["function"]
    is_narrow = has_narrow_layers(operands, num_batch=0, **params)
    is_large = math.prod(shape) >= _LARGE_TENSOR or is_narrow
    if not is_large and len({x.shape for x in arrays}) == 1 and len(shape) > 1:
        flat = [x.reshape(-1) for x in arrays]
        found = _lower_in_blocks(*flat, *operands[len(arrays) :], num_batch=0, **params)
        return found if params["is_reduction"] else found.reshape(shape)
    summed = functools.partial(apply_with_unrolled_output, sum_first_layer=True)
    apply = (
        apply_unrolled
        if is_narrow
        else summed
        if is_large
        else apply_with_unrolled_output
    )
    blocks = Blocks.of(shape, _LARGE_BLOCK if is_large else _SMALL_BLOCK)
    if blocks.num == 1 or (params["is_reduction"] and _are_known(function, arrays)):
        return call_whole(apply, *operands, num_batch=0, **params)
    if params["is_reduction"]:

        def squares(parts):
            return [jnp.square(x) for x in function(parts)]

        return blocks.sums(squares, arrays) / math.prod(shape)

    def find(parts):
        return function(apply, parts, weights)

    return blocks.map(find, arrays, shared=is_large)


def _are_known(features: Features, arrays: Sequence[Any]) -> bool:
    """Check whether all features are input arrays; blocks have no benefit then."""
    return all(any(x is array for array in arrays) for x in features(arrays))
