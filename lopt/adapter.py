"""Adapters from per-tensor update rules to optax gradient transformations."""

import itertools
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree
from typing_extensions import override

from lopt.base import LearnedOptimizer, NumSteps, Theta
from lopt.errors import UserError
from lopt.explicit_axes import with_automatic_axes
from lopt.pytrees import (
    align,
    all_keys,
    as_array,
    check_alike,
    check_floating,
    check_result,
    flatten,
    float32_vector,
    gather,
)

TensorState: TypeAlias = PyTree[Array]


class StepInfo(NamedTuple):
    """Step index, horizon and loss of one update.

    Attributes:
        step: Step index, clamped to `num_steps - 1`.
        count: Step index, not clamped.
        num_steps: Horizon, at least 1.
        loss: The `value` argument of `update`, or `None`.
    """

    step: Int[Array, ""]
    count: Int[Array, ""]  # pyright: ignore[reportIncompatibleMethodOverride]
    num_steps: Float[Array, ""]
    loss: Float[Array, ""] | None

    @property
    def progress(self) -> Float[Array, ""]:
        """Fraction of the run completed, ``step / num_steps``.

        In [0, 1) for horizons of up to 2**24 steps, the integer precision of float32.
        """
        return self.step.astype(jnp.float32) / self.num_steps


class LeafInputs(NamedTuple):
    """Inputs of an update rule for one parameter tensor.

    Arrays have rank one or more: scalars are reshaped to length one.

    Attributes:
        grad: Gradient, in float32.
        param: Parameter, in float32; `None` if `update` was called without parameters.
        state: State from `init_tensor` or from the previous update.
        leaf_index: Index among the tensors of the parameters, in flattening order.
            Tensors without a gradient are counted if `update` received the parameters.
        name: Last key of the leaf's path, in lower case, such as ``kernel``.
        path: All keys of the leaf's path, such as ``params/Dense_0/kernel``.
    """

    grad: Float[Array, "..."]
    param: Any
    state: TensorState
    leaf_index: int
    name: str = ""
    path: str = ""


class LearnedState(NamedTuple):
    """State of a learned optimizer.

    Attributes:
        count: Number of updates.
        tensors: Per-tensor states, transposed: the structure of `init_tensor`'s result,
            in which each leaf is a pytree like the parameters.
        shared: State shared by all tensors.
    """

    count: Int[Array, ""]  # pyright: ignore[reportIncompatibleMethodOverride]
    tensors: Any
    shared: Any


class TensorOptimizer(LearnedOptimizer):
    """Learned optimizer defined by an update rule for a list of tensors.

    `as_optax` flattens pytrees and validates its arguments. It passes float32 arrays of
    rank one or more to the rule, and casts updates to the dtypes of the parameters, or
    of the gradients if `update` receives no parameters. Leaves that are `None` or have
    no elements are skipped.
    """

    reads_params: ClassVar[bool] = True
    """Whether `update` requires the parameters."""
    reads_loss: ClassVar[bool] = False
    """Whether `update` requires the loss as the keyword argument `value`."""
    clips_gradients: ClassVar[bool] = True
    """Whether parameters and state stay finite if a gradient is infinite. Optimizers
    whose updates are proportional to the gradient set it to False."""

    @abstractmethod
    def init_tensor(self, param: Float[Array, "..."]) -> TensorState:
        """Initialize the state of one tensor.

        Args:
            param: Parameter, in float32 and of rank one or more.

        Returns:
            The state. Its structure must be the same for all shapes of `param`, and its
            arrays must have explicit dtypes, which are float64 otherwise in programs
            with `jax_enable_x64`.
        """

    def is_used(self, state: TensorState) -> Bool[Array, "..."] | None:
        """Find the entries of a tensor that have had a nonzero gradient.

        Entries that have not keep their values, whatever the update rule returns.
        Gradients of parameters that the loss does not depend on are zero.

        Args:
            state: New state of the tensor.

        Returns:
            Array broadcastable to the tensor. By default `None`: the update rule itself
            leaves such entries unchanged.
        """
        del state
        return None

    @abstractmethod
    def init_shared(self, num_tensors: int) -> PyTree[Array]:
        """Initialize the state that all tensors share."""

    @abstractmethod
    def update_tensors(
        self,
        theta: Theta,
        tensors: Sequence[LeafInputs],
        shared: PyTree,
        info: StepInfo,
    ) -> tuple[list[tuple[Array, TensorState]], PyTree]:
        """Compute one update of all tensors.

        Args:
            theta: Outer parameters.
            tensors: Tensors that have a gradient and at least one element.
            shared: State shared by all tensors.
            info: Step index, horizon and loss.

        Returns:
            Per-tensor update and new state, in the order of `tensors`, and the new
            shared state. Updates are added to the parameters.
        """

    @override
    def as_optax(
        self, theta: Theta, num_steps: NumSteps
    ) -> optax.GradientTransformationExtraArgs:
        def init(params):
            check_floating("parameters", params)
            leaves, treedef = flatten(params)
            structure = jax.tree.structure(self._like(jnp.zeros(1, jnp.float32)))
            states = [
                [None] * structure.num_leaves
                if leaf is None
                else [
                    as_array(x)
                    for x in jax.tree.leaves(self.init_tensor(float32_vector(leaf)))
                ]
                for leaf in leaves
            ]
            num_tensors = sum(leaf is not None for leaf in leaves)
            return LearnedState(
                count=jnp.zeros((), jnp.int32),
                tensors=gather(states, treedef, structure),
                shared=self.init_shared(num_tensors),
            )

        def update(updates, state, params=None, *, value=None, **extra_args):
            del extra_args
            self._check_given(params, value)
            check_floating("gradients", updates)
            # Flax restores checkpoints as NumPy arrays.
            state = jax.tree.map(jnp.asarray, state)
            info = _step_info(state.count, num_steps, value)
            leaves, treedef = flatten(updates)
            values = align(treedef, params) if params is not None else leaves
            check_alike(leaves, values)
            states, structure = self._scatter(treedef, state.tensors, leaves)
            live = [
                i
                for i, leaf in enumerate(leaves)
                if leaf is not None and jnp.size(leaf)
            ]
            keys = all_keys(updates)
            places = list(itertools.accumulate(leaf is not None for leaf in values))
            tensors = [
                LeafInputs(
                    float32_vector(leaves[i]),
                    None if params is None else float32_vector(values[i]),
                    jax.tree.unflatten(structure, states[i]),
                    places[i] - 1,
                    keys[i][-1].lower() if keys[i] else "",
                    "/".join(keys[i]),
                )
                for i in live
            ]
            update_tensors = with_automatic_axes(
                self.update_tensors, tensors, state.shared
            )
            results, shared = update_tensors(theta, tensors, state.shared, info)
            for i, tensor, result in zip(live, tensors, results, strict=True):
                check_result(type(self).__name__, tensor.grad, tensor.state, result)
                step, tensor_state = result
                is_used = self.is_used(tensor_state)
                if is_used is not None:
                    step = jnp.where(is_used, step, 0.0)
                like = jnp.asarray(values[i])
                leaves[i] = step.reshape(like.shape).astype(like.dtype)
                states[i] = jax.tree.leaves(tensor_state)
            return treedef.unflatten(leaves), LearnedState(
                count=optax.safe_increment(state.count),  # pyright: ignore
                tensors=gather(states, treedef, structure),
                shared=shared,
            )

        return optax.GradientTransformationExtraArgs(init, update)

    def _check_given(self, params: Any, loss: Any) -> None:
        """Raise if `update` lacks a required argument or the loss is not a scalar."""
        name = type(self).__name__
        if params is None and self.reads_params:
            raise UserError(
                f"{name} reads the parameters, but got none: call "
                "`update(grads, state, params)`."
            )
        shape = None if loss is None else jnp.shape(loss)
        if self.reads_loss and shape is None:
            raise UserError(
                f"{name} reads the loss, but got none: call "
                "`update(grads, state, params, value=loss)`."
            )
        if self.reads_loss and shape:
            raise UserError(
                f"{name} reads the loss, which must be a scalar; got `value` of shape "
                f"{shape}. Try its mean."
            )

    def _like(self, param: Any) -> Any:
        """Shapes of a tensor's state, from abstract evaluation of `init_tensor`."""
        return jax.eval_shape(self.init_tensor, param)

    def _scatter(self, treedef: Any, trees: Any, leaves: Sequence[Any]) -> Any:
        """Invert `gather`, and validate shapes against the gradients.

        Args:
            treedef: Structure of the gradients.
            trees: `LearnedState.tensors`.
            leaves: Gradients, flattened.

        Returns:
            The leaves of each tensor's state, and the structure of one state.
        """
        structure = jax.tree.structure(self._like(jnp.zeros(1, jnp.float32)))
        columns = [align(treedef, t) for t in structure.flatten_up_to(trees)]
        states = [[column[i] for column in columns] for i in range(len(leaves))]
        for leaf, state in zip(leaves, states, strict=True):
            if leaf is None:
                continue
            shape = jax.ShapeDtypeStruct(jnp.shape(leaf) or (1,), jnp.float32)
            expected = [x.shape for x in jax.tree.leaves(self._like(shape))]
            if expected != [jnp.shape(x) for x in state]:
                raise UserError(
                    "gradients must have the shapes of the parameters that `init` was "
                    f"given; got one of shape {jnp.shape(leaf)} whose state has the "
                    f"shapes {[jnp.shape(x) for x in state]} instead of {expected}. "
                    "Call `init` again when the parameters change."
                )
        return states, structure


class PerTensorOptimizer(TensorOptimizer):
    """Learned optimizer that updates every tensor independently.

    Subclasses implement `init_theta`, `init_tensor` and `update_tensor`.
    """

    @abstractmethod
    def update_tensor(
        self, theta: Theta, tensor: LeafInputs, info: StepInfo
    ) -> tuple[Array, TensorState]:
        """Compute the additive update of one tensor and its new state."""

    @override
    def init_shared(self, num_tensors: int) -> PyTree[Array]:
        return ()

    @override
    def update_tensors(
        self,
        theta: Theta,
        tensors: Sequence[LeafInputs],
        shared: PyTree,
        info: StepInfo,
    ) -> tuple[list[tuple[Array, TensorState]], PyTree]:
        results: list[Any] = [self.update_tensor(theta, t, info) for t in tensors]
        for result in results:
            if not isinstance(result, tuple) or len(result) != 2:
                raise UserError(
                    f"`update_tensor` of {type(self).__name__} must return an update "
                    f"and a state; got {type(result).__name__}. Try `return step, "
                    "state`."
                )
        return results, ()


def _step_info(count: Int[Array, ""], num_steps: NumSteps, value: Any) -> StepInfo:
    total = jnp.maximum(jnp.asarray(num_steps, jnp.float32), 1.0)
    last = jnp.asarray(total, jnp.int32) - 1
    loss = None if value is None else jnp.asarray(value, jnp.float32)
    return StepInfo(jnp.minimum(count, last), count, total, loss)
