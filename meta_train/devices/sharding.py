"""Sharding: populations are split over all devices, all other arrays replicated."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from lopt.errors import UserError

AXIS = "pairs"
# Size in bytes from which members count as large, see `prefer_one_by_one`.
LARGE_MEMBER = 2**21
Tree = TypeVar("Tree")
Shared = TypeVar("Shared")
Rest = TypeVar("Rest")
Result = TypeVar("Result")


def mesh() -> Mesh:
    """Create a one-dimensional mesh of all devices of all processes."""
    return jax.make_mesh((jax.device_count(),), (AXIS,), axis_types=(AxisType.Auto,))


def check(num: int, num_devices: int) -> None:
    """Validate that a population of `num` is a multiple of the number of devices."""
    if num % num_devices:
        nearest = num_devices * max(1, round(num / num_devices))
        raise UserError(
            f"the population must be a multiple of the {num_devices} devices, so that "
            f"each has an equal share; got {num}. Try {nearest}."
        )


def replicate(tree: Tree) -> Tree:
    """Replicate every array over all devices.

    Args:
        tree: Pytree of arrays with identical values in all processes.
    """
    everywhere = replicated(mesh())
    if jax.process_count() == 1:
        return jax.device_put(tree, everywhere)
    local = jax.make_array_from_process_local_data
    return jax.tree.map(lambda x: local(everywhere, x, x.shape), tree)


def replicated_shapes(shapes: Tree) -> Tree:
    """Attach a replicated sharding to every leaf of a pytree of shapes."""
    everywhere = replicated(mesh())
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere), shapes
    )


def replicated(mesh: Mesh) -> NamedSharding:
    """Sharding of an array with a copy on every device of `mesh`."""
    return NamedSharding(mesh, PartitionSpec())


def split(mesh: Mesh) -> NamedSharding:
    """Sharding of a population over the devices of `mesh`."""
    # Use an empty spec on a single device. With an axis name, the sharding of the
    # outputs would compare different from that of the inputs, and JAX would compile
    # the step twice.
    return NamedSharding(mesh, PartitionSpec(*(AXIS,) if mesh.size > 1 else ()))


def constrain(populations: Tree) -> Tree:
    """Constrain `populations` to be sharded over the devices, inside `jit`.

    Does nothing if the number of devices does not divide the population.
    """
    if not _can_split(populations):
        return populations
    return jax.lax.with_sharding_constraint(populations, PartitionSpec(AXIS))


def gather(populations: Tree) -> Tree:
    """All-gather `populations` to each device, inside `jit`."""
    if _num_devices() == 1:
        return populations
    return jax.lax.with_sharding_constraint(populations, PartitionSpec())


def map_one_by_one(
    function: Callable[[Shared, Tree, Rest], tuple[Result, Tree]],
    shared: Shared,
    state: Tree,
    rest: Rest,
    *,
    isolated: bool,
) -> tuple[Result, Tree]:
    """Map ``function(shared, state, rest)`` sequentially over the members.

    Each device loops over its own shard of the population. The new state of a member
    overwrites its old state in the loop carry.

    Args:
        function: Function of one member. Returns a result and the new state.
        shared: First argument, common to all members.
        state: Pytree of member states, with members along the leading axis.
        rest: Pytree of further inputs, with members along the leading axis.
        isolated: Whether results must be bitwise independent of the number of members.

    Returns:
        Results and new states, with members along the leading axis.
    """
    call = _isolate(function) if isolated else function

    def apply(shared, state, rest):
        def at(tree, i):
            return jax.tree.map(lambda x: x[i], tree)

        num = jax.tree.leaves(rest)[0].shape[0]
        shapes = jax.eval_shape(lambda: call(shared, at(state, 0), at(rest, 0))[0])
        empty = jax.tree.map(lambda x: jnp.zeros((num, *x.shape), x.dtype), shapes)

        def body(i, carry):
            new = call(shared, at(carry[1], i), at(rest, i))
            return jax.tree.map(lambda whole, part: whole.at[i].set(part), carry, new)

        return jax.lax.fori_loop(0, num, body, (empty, state))

    if not _can_split((state, rest)):
        return apply(shared, state, rest)
    own, all_ = PartitionSpec(AXIS), PartitionSpec()
    return jax.shard_map(
        apply, in_specs=(all_, own, own), out_specs=own, check_vma=False
    )(shared, state, rest)


def _isolate(function: Callable[..., Result]) -> Callable[..., Result]:
    """Wrap `function` in a loop of one iteration.

    The trip count is opaque to the compiler, so that it can neither inline the loop nor
    move computations on a member out of it. Otherwise, the operations of `function`
    would be fused with others depending on the number of members, and round
    differently.
    """

    def call(shared, *member):
        shapes = jax.eval_shape(function, shared, *member)
        empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        used = jax.tree.map(jnp.zeros_like, member)
        one = jax.lax.optimization_barrier(jnp.ones((), jnp.int32))

        def body(_, carry):
            return (used, function(shared, *carry[0]))

        return jax.lax.fori_loop(0, one, body, (member, empty))[1]

    return call


def prefer_one_by_one(populations: Any) -> bool:
    """Check whether members should be unrolled sequentially.

    This is the case on CPU if the mean size of a member is at least `LARGE_MEMBER`
    bytes. A large member then stays in the cache for a whole truncation window. Small
    members are faster in a batch.
    """
    num = max((x.shape[0] for x in jax.tree.leaves(populations)), default=1)
    return _platform() == "cpu" and num_bytes(populations) >= num * LARGE_MEMBER


def _can_split(populations: Any) -> bool:
    num = _num_devices()
    return num > 1 and all(
        leaf.shape[0] % num == 0 for leaf in jax.tree.leaves(populations)
    )


def num_bytes(tree: Any) -> int:
    """Compute the total size of all arrays in bytes, excluding PRNG keys."""

    def is_key(x):
        return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)

    arrays = [x for x in jax.tree.leaves(tree) if not is_key(x)]
    return sum(x.size * x.dtype.itemsize for x in arrays)


def _platform() -> str:
    """Look up the platform that the current program is traced for."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def _num_devices() -> int:
    """Count the devices that the current program is traced for."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else mesh.size
