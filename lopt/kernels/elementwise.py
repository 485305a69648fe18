"""Elementwise functions with per-backend lowerings.

A function is defined once. Its lowering depends on backend, network and tensor size.
"Narrow" networks have kernels of at most 256 weights.

backend, tensor                        lowering                          gain
-------------------------------------  --------------------------------  ------------
CPU, narrow, below 2**15 elements      matrix products                   compile time
CPU, narrow, below 2**17 parameters    layers unrolled in a fused loop   speed
CPU, wide or 2**17 parameters          native code                       speed: 1-2 x,
                                                                         by machine
CPU, the same, without native code     blocks, activations in cache      speed, memory
CPU, the same, sharded                 each device does its own shard    no all-gather
TPU, unbatched, on one device          Pallas kernel                     memory
otherwise, and for derivatives         plain XLA on whole tensors        -

No TPU has run the Pallas kernel. By the compiler's analysis for v5e, an update of 2,048
x 1,024 parameters takes 0.14 times their memory for temporaries and accesses 48 times
their bytes with the kernel, against 16 and 126 times without (MLP with 2 x 32 units);
for `AdafactorMLP`, 0.33 and 48 times against 33 and 174.
"""

import contextlib
from collections.abc import Sequence

from jax.interpreters import mlir
from jaxtyping import Array, Float, PyTree

from lopt.kernels.cpu import lower_on_cpu
from lopt.kernels.layers import Apply, Layers
from lopt.kernels.primitive import (
    Features,
    Function,
    bind,
    elementwise_p,
    lower_plain,
)
from lopt.kernels.tpu import lower_on_tpu

__all__ = ["Apply", "Layers", "elementwise", "mean_squares"]


def elementwise(
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
    return bind(function, arrays, weights, is_reduction=False)


def mean_squares(
    features: Features, arrays: Sequence[Float[Array, "..."]]
) -> Float[Array, " features"]:
    """Compute the mean square of each array in ``features(arrays)``.

    Args:
        features: Hashable elementwise function that returns arrays of the tensor's
            shape.
        arrays: Arrays that are broadcastable to the tensor's shape, of equal rank.
    """
    return bind(features, arrays, (), is_reduction=True)


# Partitioning requires that the devices are known during lowering, which is requested
# by a private JAX API. Without it, sharded tensors fall back to the plain lowering.
with contextlib.suppress(ImportError, AttributeError):
    from jax._src import dispatch

    dispatch.prim_requires_devices_during_lowering.add(elementwise_p)
mlir.register_lowering(
    elementwise_p, mlir.lower_fun(lower_plain, multiple_results=False)
)
mlir.register_lowering(elementwise_p, lower_on_cpu, platform="cpu")
mlir.register_lowering(elementwise_p, lower_on_tpu, platform="tpu")
