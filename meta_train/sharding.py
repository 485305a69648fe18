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
LARGE_MEMBER = 2**21  # in bytes
Tree = TypeVar("Tree")
Shared = TypeVar("Shared")
Rest = TypeVar("Rest")
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
    function: Callable[[Shared, Tree, Rest], tuple[Result, Tree]],
    shared: Shared,
    state: Tree,
    rest: Rest,
    *,
    isolated: bool,
) -> tuple[Result, Tree]:
    """Calls ``function(shared, state, rest)`` on one member after the other.

    It returns a result and the member's new state, which takes the place of the old.
    Each device does so with its own members.

    Args:
        function: Of one member.
        shared: What all of them get.
        state: What each of them carries, along the leading axis.
        rest: What else each of them gets.
        isolated: Whether results must not depend, in any bit, on how many there are.
    """
    call = _isolate(function) if isolated else function

    def apply(shared, state, rest):
        at = lambda tree, i: jax.tree.map(lambda x: x[i], tree)
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
    """Returns the function in a loop of its own.

    The compiler can neither take it apart nor move anything out of it: for another
    number of members it would fuse what is in it with other operations, and round
    otherwise.
    """

    def call(shared, *member):
        shapes = jax.eval_shape(function, shared, *member)
        empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        used = jax.tree.map(jnp.zeros_like, member)
        one = jax.lax.optimization_barrier(jnp.ones((), jnp.int32))
        body = lambda _, carry: (used, function(shared, *carry[0]))
        return jax.lax.fori_loop(0, one, body, (member, empty))[1]

    return call


def prefer_one_by_one(populations: Any) -> bool:
    """Says whether members are so large that a CPU takes one after the other.

    Each then stays in the cache for a whole window; small ones cost less together.
    """
    num = max((x.shape[0] for x in jax.tree.leaves(populations)), default=1)
    return _platform() == "cpu" and num_bytes(populations) >= num * LARGE_MEMBER


def _can_split(populations: Any) -> bool:
    num = _num_devices()
    return num > 1 and all(
        leaf.shape[0] % num == 0 for leaf in jax.tree.leaves(populations)
    )


def num_bytes(tree: Any) -> int:
    """Returns the size of all arrays but keys."""
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    arrays = [x for x in jax.tree.leaves(tree) if not is_key(x)]
    return sum(x.size * x.dtype.itemsize for x in arrays)


def _platform() -> str:
    """Returns what a program is being traced for."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def _num_devices() -> int:
    """Returns how many devices a program is being traced for."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else mesh.size
