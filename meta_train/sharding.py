"""Where arrays live: the population over all devices, everything else on each."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from lopt.errors import UserError

if TYPE_CHECKING:
    from meta_train.trainer import OuterState

AXIS = "pairs"
Tree = TypeVar("Tree")
Shared = TypeVar("Shared")
Result = TypeVar("Result")


def mesh() -> Mesh:
    """Returns all devices of all processes along one axis."""
    return jax.make_mesh((jax.device_count(),), (AXIS,), axis_types=(AxisType.Auto,))


def check(num: int, num_devices: int) -> None:
    """Raises unless the devices divide a population of `num`."""
    if num % num_devices:
        nearest = num_devices * max(1, round(num / num_devices))
        raise UserError(
            f"the population must be a multiple of the {num_devices} devices, so that "
            f"each has an equal share; got {num}. Try {nearest}."
        )


def replicate(tree: Tree) -> Tree:
    """Puts a copy of every array, the same in all processes, on each device."""
    everywhere = NamedSharding(mesh(), PartitionSpec())
    if jax.process_count() == 1:
        return jax.device_put(tree, everywhere)
    local = jax.make_array_from_process_local_data
    return jax.tree.map(lambda x: local(everywhere, x, x.shape), tree)


def place(state: "OuterState") -> "OuterState":
    """Puts the populations over the devices and the rest on each of them."""
    return jax.device_put(state, shardings(state, mesh()))


def replicated_shapes(shapes: Tree) -> Tree:
    """Returns `shapes` with a copy of every array on each device."""
    everywhere = NamedSharding(mesh(), PartitionSpec())
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere), shapes
    )


def shardings(state: "OuterState", mesh: Mesh) -> "OuterState":
    """Returns where each array of `state` lives."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    # One device has nothing to split, and jax would name the layout otherwise on the
    # way out than on the way in, and compile twice.
    split = NamedSharding(mesh, PartitionSpec(*(AXIS,) if mesh.size > 1 else ()))
    on = lambda tree, sharding: jax.tree.map(lambda _: sharding, tree)
    return on(state, everywhere).replace(populations=on(state.populations, split))


def constrain(populations: Tree) -> Tree:
    """Keeps `populations` spread over the devices inside a jit, if they divide it."""
    if not _can_split(populations):
        return populations
    return jax.lax.with_sharding_constraint(populations, PartitionSpec(AXIS))


def gather(populations: Tree) -> Tree:
    """Puts all of `populations` on each device inside a jit."""
    if _num_devices() == 1:
        return populations
    return jax.lax.with_sharding_constraint(populations, PartitionSpec())


def map_one_by_one(
    function: Callable[[Shared, Tree], Result], shared: Shared, populations: Tree
) -> Result:
    """Calls ``function(shared, member)`` on one member after the other.

    Each device does so with its own ones.
    """

    def apply(shared, populations):
        return jax.lax.map(lambda member: alone(shared, member), populations)

    def alone(shared, member):
        # In a loop of its own that the compiler can neither take apart nor move
        # anything out of: for another number of members it would fuse what is in it
        # with other operations, and round otherwise.
        shapes = jax.eval_shape(function, shared, member)
        empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        used = jax.tree.map(jnp.zeros_like, member)
        one = jax.lax.optimization_barrier(jnp.ones((), jnp.int32))
        body = lambda _, carry: (used, function(shared, carry[0]))
        return jax.lax.fori_loop(0, one, body, (member, empty))[1]

    if not _can_split(populations):
        return apply(shared, populations)
    own, all_ = PartitionSpec(AXIS), PartitionSpec()
    return jax.shard_map(apply, in_specs=(all_, own), out_specs=own, check_vma=False)(
        shared, populations
    )


def _can_split(populations: Any) -> bool:
    num = _num_devices()
    return num > 1 and all(
        leaf.shape[0] % num == 0 for leaf in jax.tree.leaves(populations)
    )


def _num_devices() -> int:
    """Returns how many devices a program is being traced for."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else mesh.size
