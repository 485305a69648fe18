"""TPU lowering: a Pallas kernel for unbatched tensors on one device."""

import functools
from typing import Any

import jax
from jax.interpreters import mlir

from lopt.kernels.primitive import (
    STATIC_PARAMS,
    call_whole,
    is_on_one_device,
    lower_plain,
)


def lower_on_tpu(ctx: Any, *operands: Any, **params: Any) -> Any:
    """Lower to a Pallas kernel where it is supported, and to plain XLA otherwise."""
    # The kernel supports neither sharding nor batch axes, and uses 32-bit indices.
    is_single = is_on_one_device(ctx) and not params["num_batch"]
    size = max(x.size for x in ctx.avals_in[: params["num_arrays"]])
    is_supported = is_single and not params["is_reduction"] and 0 < size < 2**31
    form = call_kernel if is_supported else lower_plain
    return mlir.lower_fun(form, multiple_results=False)(ctx, *operands, **params)


# The jit lets tensors of the same shape share one compiled kernel.
@functools.partial(jax.jit, static_argnames=("interpret", *STATIC_PARAMS))
def call_kernel(*operands, interpret=False, **params):
    """Run the function of a primitive's operands and parameters as a Pallas kernel."""
    # Importing Pallas takes a quarter of a second.
    from lopt.kernels.pallas_tpu import in_kernel

    def call(apply, arrays, leaves):
        return call_whole(apply, *arrays, *leaves, **params)

    num = params["num_arrays"]
    return in_kernel(call, operands[:num], operands[num:], interpret=interpret)
