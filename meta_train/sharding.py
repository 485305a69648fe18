"""Where arrays live: the population over all devices, everything else on each."""

from typing import TYPE_CHECKING, TypeVar

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from lopt.errors import UserError

if TYPE_CHECKING:
    from meta_train.trainer import OuterState

AXIS = "pairs"
Tree = TypeVar("Tree")


def mesh() -> Mesh:
    """Returns all devices along one axis."""
    return jax.make_mesh((jax.device_count(),), (AXIS,), axis_types=(AxisType.Auto,))


def check(num: int) -> None:
    """Raises unless the devices divide a population of `num`."""
    devices = jax.device_count()
    if num % devices:
        nearest = devices * max(1, round(num / devices))
        raise UserError(
            f"the population must be a multiple of the {devices} devices, so that each "
            f"has an equal share; got {num}. Try {nearest}."
        )


def replicate(tree: Tree) -> Tree:
    """Puts a copy of every array on each device."""
    return jax.device_put(tree, NamedSharding(mesh(), PartitionSpec()))


def place(state: "OuterState") -> "OuterState":
    """Puts the populations over the devices and the rest on each of them."""
    return jax.device_put(state, shardings(state))


def shardings(state: "OuterState") -> "OuterState":
    """Returns where each array of `state` lives."""
    everywhere = NamedSharding(mesh(), PartitionSpec())
    on = lambda tree, sharding: jax.tree.map(lambda _: sharding, tree)
    return on(state, everywhere).replace(populations=on(state.populations, _split()))


def constrain(populations: Tree) -> Tree:
    """Keeps `populations` spread over the devices inside a jit, if they divide it."""
    num = jax.device_count()
    if num == 1 or any(leaf.shape[0] % num for leaf in jax.tree.leaves(populations)):
        return populations
    return jax.lax.with_sharding_constraint(populations, _split())


def _split() -> NamedSharding:
    # One device has nothing to split, and jax would name the layout otherwise on the
    # way out than on the way in, and compile twice.
    axes = (AXIS,) if jax.device_count() > 1 else ()
    return NamedSharding(mesh(), PartitionSpec(*axes))
