"""Update rules on meshes with explicit axes."""

from collections.abc import Sequence
from typing import Any, cast

import jax


def with_automatic_axes(
    update_tensors: Any, tensors: Sequence[Any], shared: Any
) -> Any:
    """Run `update_tensors` with automatic axes on meshes with explicit axes.

    Update rules reshape and stack tensors freely, which explicit sharding rejects.
    Updates keep the sharding of the gradients, and states keep their own.

    Args:
        update_tensors: `TensorOptimizer.update_tensors`.
        tensors: `LeafInputs` of each tensor.
        shared: State shared by all tensors.
    """

    def spec(x):
        return jax.typeof(x).sharding.spec

    meshes = [jax.typeof(t.grad).sharding.mesh for t in tensors]
    if not any(mesh.explicit_axes for mesh in meshes):
        return update_tensors
    out = (
        [(spec(t.grad), jax.tree.map(spec, t.state)) for t in tensors],
        jax.tree.map(spec, shared),
    )

    def on_arrays(theta, arrays, shared, info):
        # `auto_axes` maps arrays only, so static fields bypass it.
        rebuilt = [
            tensor._replace(grad=grad, param=param, state=state)
            for tensor, (grad, param, state) in zip(tensors, arrays, strict=True)
        ]
        return update_tensors(theta, rebuilt, shared, info)

    automatic = jax.sharding.auto_axes(on_arrays, out_sharding=out)

    def on_tensors(theta, tensors, shared, info):
        arrays = [(t.grad, t.param, t.state) for t in tensors]
        return cast(Any, automatic)(theta, arrays, shared, info)

    return on_tensors
