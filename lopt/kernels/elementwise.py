"""Elementwise functions with per-backend lowerings.

A function is defined once and lowered according to backend, network and tensor size:

- CPU, narrow network, small tensor: matrix products, which compile fast.
- CPU, narrow network, medium tensor: layers unrolled into scalar terms, which fuse with
  the surrounding operations into one loop over the parameters.
- CPU, wide network or large tensor: native code. Without native code, one block of the
  tensor at a time, so that activations stay in cache. Sharded tensors are partitioned,
  and each device processes its shard.
- TPU and GPU: a Pallas kernel if the tensor is unbatched and on one device.
- Otherwise, and for derivatives: plain XLA operations on whole tensors.
"""

import contextlib
import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Float, PyTree

from lopt.kernels import native
from lopt.kernels.blocks import Blocks
from lopt.kernels.native.program import compile_function
from lopt.kernels.partitioning import in_shards

Layers: TypeAlias = Sequence[tuple[Any, Any]]
"""Pairs of a kernel of shape (outputs, inputs) and a bias, with ReLUs between layers.

Entries are arrays, or refs inside a Pallas kernel."""
Apply: TypeAlias = Callable[[Sequence[Array], Layers], Sequence[Array]]
"""Function that applies layers to one array per input; one array per output."""
Function: TypeAlias = Callable[[Apply, Sequence[Array], PyTree], Array]
Features: TypeAlias = Callable[[Sequence[Array]], Sequence[Array]]

_WRITTEN_OUT = 256  # Largest number of weights in a kernel that is unrolled.
_IN_A_ROW = 8  # Number of terms in a sequential partial sum.
# Block sizes in parameters. The activations of a small block stay in the cache of one
# core. A large block is split over cores, which pays off from `_MANY` parameters on.
_SMALL_BLOCK, _LARGE_BLOCK, _MANY = 640, 16_384, 2**17
# Number of elements, batch axes included, from which unrolled layers are worth their
# compile time.
_LARGE_ENOUGH = 2**15


def pointwise(
    function: Function, arrays: Sequence[Float[Array, "..."]], weights: PyTree[Array]
) -> Float[Array, "..."]:
    """Compute the elementwise function ``function(apply, arrays, weights)``.

    Args:
        function: Hashable function. Each element of its result may depend only on the
            corresponding elements of `arrays` and on all of `weights`. It may call its
            first argument, ``apply(rows, layers)``, at most once.
        arrays: Arrays that are broadcastable to the tensor's shape, of equal rank.
        weights: Pytree of arrays, which may include `Layers`.

    Returns:
        An array of the tensor's shape.
    """
    return _bind(function, arrays, weights, is_mean=False)


def mean_squares(
    features: Features, arrays: Sequence[Float[Array, "..."]]
) -> Float[Array, " features"]:
    """Compute the mean square of each array in ``features(arrays)``.

    Args:
        features: Hashable elementwise function that returns arrays of the tensor's
            shape.
        arrays: Arrays that are broadcastable to the tensor's shape, of equal rank.
    """
    return _bind(features, arrays, (), is_mean=True)


def _bind(function, arrays, weights, *, is_mean):
    leaves, treedef = jax.tree.flatten(weights)
    return _pointwise_p.bind(
        *_varying_alike([*arrays, *leaves]),
        function=function,
        num_arrays=len(arrays),
        treedef=treedef,
        is_mean=is_mean,
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


def multiply(
    rows: Sequence[Array], layers: Layers, *, is_first_summed: bool = False
) -> Sequence[Array]:
    """Apply layers as matrix products.

    Args:
        rows: One array per input, of broadcastable shapes.
        layers: Layers to apply.
        is_first_summed: Whether to compute a small first layer as a sum over its inputs
            instead of a matrix product. The sum fuses with the features and the ReLU
            and runs on all cores, which pays off for large blocks.
    """
    shape = jnp.broadcast_shapes(*(row.shape for row in rows))
    *before, (kernel, bias) = layers
    if is_first_summed and before and before[0][0].size <= _WRITTEN_OUT:
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


def multiply_but_last(
    rows: Sequence[Array], layers: Layers, *, is_first_summed: bool = False
) -> Sequence[Array]:
    """Apply all layers but the last as matrix products.

    The last layer has few outputs. It is unrolled, so that it fuses with the ReLU
    before it.
    """
    hidden = multiply(rows, layers[:-1], is_first_summed=is_first_summed)
    return write_out(hidden, layers[-1:], is_first=False)


def write_out(
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
        is_next = count % _IN_A_ROW and rows[i].shape == sums[-1].shape
        sums[-1:] = [sums[-1] + term] if is_next else [sums[-1], term]
    return functools.reduce(jnp.add, sums)


# A single primitive until lowering, which is fast to trace and to batch. It is
# differentiated as matrix products, because derivatives of unrolled layers would take
# minutes to compile.
_pointwise_p = Primitive("pointwise")


def _call(apply, *operands, num_batch, **params):
    """Call the function on whole tensors."""
    if num_batch:
        inner = functools.partial(_call, apply, num_batch=num_batch - 1, **params)
        axes = [None if x.shape[0] == 1 else 0 for x in operands]
        if all(axis is None for axis in axes):
            return inner(*(x[0] for x in operands))[None]
        kept = [x[0] if a is None else x for x, a in zip(operands, axes, strict=True)]
        return jax.vmap(inner, axes)(*kept)
    arrays, weights = _split(operands, **params)
    if params["is_mean"]:
        found = params["function"](arrays)
        return jnp.stack([jnp.mean(jnp.square(x)) for x in found])
    return params["function"](apply, arrays, weights)


def _split(operands, *, num_arrays, treedef, **_):
    return operands[:num_arrays], treedef.unflatten(operands[num_arrays:])


def _in_blocks(*operands, num_batch, **params):
    """Call the function on the blocks of the tensor in a sequential loop."""
    if num_batch:  # Loop over the batch: each element may have its own weights.
        inner = functools.partial(_in_blocks, num_batch=num_batch - 1, **params)
        size = max(x.shape[0] for x in operands)

        def pick(i):
            return [x[i if x.shape[0] > 1 else 0] for x in operands]

        return jax.lax.map(lambda i: inner(*pick(i)), jnp.arange(size))
    arrays, weights = _split(operands, **params)
    shape = cast(tuple[int, ...], jnp.broadcast_shapes(*(x.shape for x in arrays)))
    function = params["function"]
    is_narrow = _is_narrow(operands, num_batch=0, **params)
    is_large = math.prod(shape) >= _MANY or is_narrow
    if not is_large and len({x.shape for x in arrays}) == 1 and len(shape) > 1:
        flat = [x.reshape(-1) for x in arrays]
        found = _in_blocks(*flat, *operands[len(arrays) :], num_batch=0, **params)
        return found if params["is_mean"] else found.reshape(shape)
    summed = functools.partial(multiply_but_last, is_first_summed=True)
    apply = write_out if is_narrow else summed if is_large else multiply_but_last
    blocks = Blocks.of(shape, _LARGE_BLOCK if is_large else _SMALL_BLOCK)
    if blocks.num == 1 or (params["is_mean"] and _are_known(function, arrays)):
        return _call(apply, *operands, num_batch=0, **params)
    if params["is_mean"]:

        def squares(parts):
            return [jnp.square(x) for x in function(parts)]

        return blocks.sums(squares, arrays) / math.prod(shape)

    def find(parts):
        return function(apply, parts, weights)

    return blocks.map(find, arrays, shared=is_large)


def _are_known(features: Features, arrays: Sequence[Any]) -> bool:
    """Check whether all features are input arrays; blocks have no benefit then."""
    return all(any(x is array for array in arrays) for x in features(arrays))


def _is_narrow(
    operands: Sequence[Any], *, num_arrays: int, num_batch: int, **_: Any
) -> bool:
    kernels = [x.shape[num_batch:] for x in operands[num_arrays:]]
    return max(map(math.prod, kernels), default=0) <= _WRITTEN_OUT


@_pointwise_p.def_impl
def _(*operands, **params):
    return _compiled(*operands, **params)


_STATIC = ("function", "num_arrays", "treedef", "is_mean", "num_batch")


@functools.partial(jax.jit, static_argnames=_STATIC)
def _compiled(*operands, **params):
    # Operands are concrete under `jax.disable_jit` and `jax.debug_nans`.
    if not any(isinstance(x, Tracer) for x in operands):
        return _plain(*operands, **params)
    return _pointwise_p.bind(*operands, **params)


def _plain(*operands, **params):
    return _call(multiply, *operands, **params)


@_pointwise_p.def_abstract_eval
def _(*operands, **params):
    like = jax.eval_shape(functools.partial(_plain, **params), *operands)
    return operands[0].update(shape=like.shape, dtype=like.dtype)


def _batch(operands: Sequence[Any], axes: Sequence[Any], *, num_batch: int, **params):
    moved = [
        x[None] if a is None else jnp.moveaxis(x, a, 0)
        for x, a in zip(operands, axes, strict=True)
    ]
    return _pointwise_p.bind(*moved, num_batch=num_batch + 1, **params), 0


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params):
    plain = functools.partial(_plain, **params)
    return jax.jvp(plain, primals, tuple(map(ad.instantiate_zeros, tangents)))


def _lower_on_cpu(ctx: Any, *operands: Any, **params: Any) -> Any:
    is_narrow = _is_narrow(ctx.avals_in, **params)
    sizes = [math.prod(x.shape[params["num_batch"] :]) for x in ctx.avals_in]
    is_large_enough = max(x.size for x in ctx.avals_in) >= _LARGE_ENOUGH
    summed = functools.partial(multiply, is_first_summed=is_narrow)
    apply = write_out if is_narrow and is_large_enough else summed
    form = functools.partial(_call, apply)
    # Narrow networks fuse with the surrounding operations, but on large tensors XLA
    # materializes too many intermediates.
    is_heavy = not is_narrow or max(sizes) >= _MANY
    if is_heavy and all(x.size for x in ctx.avals_in):
        if _is_on_one_device(ctx):
            form = _find_native_code(ctx, **params) or _in_blocks
        elif _can_be_split(ctx, **params):
            form = _in_shards
    return mlir.lower_fun(form, multiple_results=False)(ctx, *operands, **params)


def _can_be_split(ctx: Any, *, num_batch: int, **_: Any) -> bool:
    """Check whether the call can be partitioned over devices by `in_shards`."""
    context = ctx.module_context
    is_known = getattr(jax.config, "jax_use_shardy_partitioner", True)
    mesh = getattr(context.axis_context, "abstract_mesh", None)
    is_local = mesh is not None and not _is_for_export(ctx)
    return is_known and is_local and not num_batch


def _in_shards(*operands, **params):
    call = functools.partial(_pointwise_p.bind, **params)
    num = params["num_arrays"]
    arrays, weights = operands[:num], operands[num:]
    return in_shards(call, arrays, weights, is_mean=params["is_mean"])


def _find_native_code(
    ctx: Any, *, function: Any, num_arrays: int, num_batch: int, **params: Any
) -> Callable[..., Any] | None:
    """Compile the function for native code, or return `None` if that is unsupported."""
    is_single = all(x.dtype == jnp.float32 for x in ctx.avals_in)
    # Exported programs may run on machines without the native library.
    if not is_single or _is_for_export(ctx) or not native.is_available():
        return None
    shapes = tuple(x.shape[num_batch:] for x in ctx.avals_in[num_arrays:])
    program = compile_function(function, num_arrays, shapes=shapes, **params)
    return program and functools.partial(_in_native_code, program)


def _in_native_code(program, *operands, num_arrays, num_batch, is_mean, **_):
    return native.call(
        program, operands, num_arrays=num_arrays, num_batch=num_batch, is_mean=is_mean
    )


def _lower_on_accelerator(kind: str, ctx: Any, *operands: Any, **params: Any) -> Any:
    # Kernels support neither sharding nor batch axes, and use 32-bit indices.
    is_single = _is_on_one_device(ctx) and not params["num_batch"]
    sizes = [x.size for x in ctx.avals_in[: params["num_arrays"]]]
    is_for_kernel = is_single and not params["is_mean"] and 0 < max(sizes) < 2**31
    # A GPU kernel is specific to one GPU model; an exported program may run on others.
    is_here = kind == "tpu" or not _is_for_export(ctx)
    is_there = is_for_kernel and is_here and _find_kernel(kind) is not None
    form = functools.partial(_in_kernel, kind=kind) if is_there else _plain
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated")
        return mlir.lower_fun(form, multiple_results=False)(ctx, *operands, **params)


def _find_kernel(kind: str) -> Callable[..., Any] | None:
    """Import `in_kernel` for a backend, or `None` if Pallas has no Triton backend."""
    # Imported lazily, because importing Pallas takes a quarter of a second.
    if kind == "tpu":
        from lopt.kernels.tpu import in_kernel

        return in_kernel
    try:
        from lopt.kernels.gpu import in_kernel
    except ImportError:
        return None
    return in_kernel


# The jit lets tensors of the same shape share one compiled kernel.
@functools.partial(jax.jit, static_argnames=("kind", "interpret", *_STATIC))
def _in_kernel(*operands, kind, interpret=False, **params):
    in_kernel = _find_kernel(kind)
    assert in_kernel is not None

    def call(apply, arrays, leaves):
        return _call(apply, *arrays, *leaves, **params)

    num = params["num_arrays"]
    return in_kernel(call, operands[:num], operands[num:], interpret=interpret)


def _is_for_export(ctx: Any) -> bool:
    return ctx.module_context.lowering_parameters.for_export


def _is_on_one_device(ctx: Any) -> bool:
    context = ctx.module_context.axis_context
    if mesh := getattr(context, "mesh", None):  # Inside a `shard_map`.
        return set(context.manual_axes) == set(mesh.axis_names)
    return context.num_devices == 1


# Partitioning requires that the devices are known during lowering, which is requested
# by a private JAX API. Without it, sharded tensors fall back to the plain lowering.
with contextlib.suppress(ImportError, AttributeError):
    from jax._src import dispatch

    dispatch.prim_requires_devices_during_lowering.add(_pointwise_p)
batching.primitive_batchers[_pointwise_p] = _batch
ad.primitive_jvps[_pointwise_p] = _jvp
mlir.register_lowering(_pointwise_p, mlir.lower_fun(_plain, multiple_results=False))
mlir.register_lowering(_pointwise_p, _lower_on_cpu, platform="cpu")
for _platform, _kind in {"tpu": "tpu", "cuda": "gpu", "rocm": "gpu"}.items():
    _lower = functools.partial(_lower_on_accelerator, _kind)
    mlir.register_lowering(_pointwise_p, _lower, platform=_platform)
