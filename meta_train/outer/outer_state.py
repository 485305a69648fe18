"""State of outer training."""

import jax
import optax
from flax import struct
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PRNGKeyArray

from meta_train.devices import sharding
from tasks.base import State, Theta


class Best(struct.PyTreeNode):
    """Outer parameters with the lowest validation loss so far.

    Attributes:
        theta: Outer parameters.
        loss: Validation loss; infinite before the first evaluation.
        step: Outer step of that evaluation.
    """

    theta: Theta
    loss: Float[Array, "..."]
    step: Int[Array, "..."]


class OuterState(struct.PyTreeNode):
    """State of a run, as stored in checkpoints; resuming from it is exact.

    Attributes:
        theta: Outer parameters.
        opt_state: State of the outer optimizer.
        populations: State of the estimator for each system.
        step: Number of outer updates taken.
        key: Random key of the run; the key of each estimate is derived from it by
            folding in `step` and the index of the system.
        average: Exponential moving average of theta; ``()`` without averaging.
        best: Best theta on the validation tasks; ``()`` without validation.
    """

    theta: Theta
    opt_state: optax.OptState
    populations: tuple[State, ...]
    step: Int[Array, "..."]
    key: PRNGKeyArray
    average: Theta = ()
    best: Best | tuple[()] = ()

    @property
    def result(self) -> Theta:
        """Theta to evaluate and export: the moving average, if there is one."""
        return self.average if jax.tree.leaves(self.average) else self.theta

    def shardings(self, mesh: Mesh) -> "OuterState":
        """Sharding of each leaf: populations are split, all other leaves replicated."""
        everywhere = jax.tree.map(lambda _: sharding.replicated(mesh), self)
        populations = jax.tree.map(lambda _: sharding.split(mesh), self.populations)
        return everywhere.replace(populations=populations)

    def placed(self) -> "OuterState":
        """Place the state on the devices."""
        return jax.device_put(self, self.shardings(sharding.mesh()))
