"""From rules for single tensors to optax: trees, dtypes, the clock, clear errors."""

import itertools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree
from typing_extensions import override

from lopt.base import LearnedOptimizer, NumSteps, Theta
from lopt.errors import UserError

TensorState: TypeAlias = PyTree[Array]


class Clock(NamedTuple):
    """When an update happens.

    Attributes:
        step: Updates taken before it; past the horizon it stands still.
        count: Updates taken before it, past the horizon too.
        num_steps: The horizon.
        loss: What the caller passed as `value`, if anything.
    """

    step: Int[Array, ""]
    count: Int[Array, ""]  # pyright: ignore[reportIncompatibleMethodOverride]
    num_steps: Float[Array, ""]
    loss: Float[Array, ""] | None

    @property
    def progress(self) -> Float[Array, ""]:
        """Returns the share of the run that is over, below one."""
        return self.step.astype(jnp.float32) / self.num_steps


class Tensor(NamedTuple):
    """One tensor of the parameters, as rules see it: never of rank zero.

    Attributes:
        grad: Its gradient.
        param: Its value; none if the rule does not read it and it was not given.
        state: What `init_tensor` returned, or the last update.
        place: Where it stands among all tensors, those without a gradient among them.
        name: Last key of its path in the tree, in lower case, such as ``kernel``.
    """

    grad: Float[Array, "..."]
    param: Any
    state: TensorState
    place: int
    name: str = ""


class LearnedState(NamedTuple):
    """State of a learned optimizer.

    Attributes:
        count: Updates taken.
        tensors: The state of a tensor, every leaf of it a tree like the parameters.
        shared: What belongs to no single tensor.
    """

    count: Int[Array, ""]  # pyright: ignore[reportIncompatibleMethodOverride]
    tensors: Any
    shared: Any


class TensorOptimizer(LearnedOptimizer):
    """Sees the parameters as a list of tensors; trees and dtypes are seen to here."""

    reads_params: ClassVar[bool] = True
    """Whether `update` must be given the parameters."""
    reads_loss: ClassVar[bool] = False
    """Whether `update` must be given the loss, as `value`."""

    @abstractmethod
    def init_tensor(self, param: Float[Array, "..."]) -> TensorState:
        """Returns the state of one tensor before the first update."""

    @abstractmethod
    def init_shared(self, num_tensors: int) -> PyTree[Array]:
        """Returns what the tensors share before the first update."""

    @abstractmethod
    def update_tensors(
        self, theta: Theta, tensors: Sequence[Tensor], shared: PyTree, clock: Clock
    ) -> tuple[list[tuple[Array, TensorState]], PyTree]:
        """Returns each tensor's step and new state, and what they share."""

    @override
    def as_optax(
        self, theta: Theta, num_steps: NumSteps
    ) -> optax.GradientTransformationExtraArgs:
        def init(params):
            _check_floating("parameters", params)
            leaves, treedef = _flatten(params)
            structure = jax.tree.structure(self._like(jnp.zeros(1, jnp.float32)))
            states = [
                [None] * structure.num_leaves
                if leaf is None
                else jax.tree.leaves(self.init_tensor(_vector(leaf)))
                for leaf in leaves
            ]
            num_tensors = sum(leaf is not None for leaf in leaves)
            return LearnedState(
                count=jnp.zeros((), jnp.int32),
                tensors=_gather(states, treedef, structure),
                shared=self.init_shared(num_tensors),
            )

        def update(updates, state, params=None, *, value=None, **extra_args):
            del extra_args
            self._check_given(params, value)
            _check_floating("gradients", updates)
            state = jax.tree.map(jnp.asarray, state)  # Flax restores NumPy arrays
            clock = _clock(state.count, num_steps, value)
            leaves, treedef = _flatten(updates)
            values = _align(treedef, params) if params is not None else leaves
            _check_alike(leaves, values)
            states, structure = self._scatter(treedef, state.tensors, leaves)
            live = [
                i
                for i, leaf in enumerate(leaves)
                if leaf is not None and jnp.size(leaf)
            ]
            names = _names(updates)
            places = list(itertools.accumulate(leaf is not None for leaf in values))
            tensors = [
                Tensor(
                    _vector(leaves[i]).astype(jnp.float32),
                    None if params is None else _vector(values[i]).astype(jnp.float32),
                    jax.tree.unflatten(structure, states[i]),
                    places[i] - 1,
                    names[i],
                )
                for i in live
            ]
            update_tensors = _automatic(self.update_tensors, tensors, state.shared)
            results, shared = update_tensors(theta, tensors, state.shared, clock)
            for i, (step, tensor_state) in zip(live, results, strict=True):
                like = jnp.asarray(leaves[i])
                leaves[i] = step.reshape(like.shape).astype(like.dtype)
                states[i] = jax.tree.leaves(tensor_state)
            return treedef.unflatten(leaves), LearnedState(
                count=optax.safe_increment(state.count),  # pyright: ignore
                tensors=_gather(states, treedef, structure),
                shared=shared,
            )

        return optax.GradientTransformationExtraArgs(init, update)

    def _check_given(self, params: Any, loss: Any) -> None:
        """Raises if what `update` was given lacks something that is read."""
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
        """Returns the shapes of the state of a tensor, at no cost."""
        return jax.eval_shape(self.init_tensor, param)

    def _scatter(self, treedef: Any, trees: Any, leaves: Sequence[Any]) -> Any:
        """Returns the leaves of each tensor's state, checked, and their structure."""
        structure = jax.tree.structure(self._like(jnp.zeros(1, jnp.float32)))
        columns = [_align(treedef, t) for t in structure.flatten_up_to(trees)]
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
    """Treats every tensor alone: a new one of these is a network and two methods."""

    @abstractmethod
    def update_tensor(
        self, theta: Theta, tensor: Tensor, clock: Clock
    ) -> tuple[Array, TensorState]:
        """Returns the step of one tensor, to be added to it, and its new state."""

    @override
    def init_shared(self, num_tensors: int) -> PyTree[Array]:
        return ()

    @override
    def update_tensors(
        self, theta: Theta, tensors: Sequence[Tensor], shared: PyTree, clock: Clock
    ) -> tuple[list[tuple[Array, TensorState]], PyTree]:
        return [self.update_tensor(theta, tensor, clock) for tensor in tensors], ()


def group(
    tensors: Sequence[Tensor], key: Callable[[Tensor], Any]
) -> dict[Any, list[int]]:
    """Indices of the tensors with each value of `key`, in order."""
    groups: dict[Any, list[int]] = {}
    for i, tensor in enumerate(tensors):
        groups.setdefault(key(tensor), []).append(i)
    return groups


def stack(trees: Sequence[Any]) -> Any:
    """Stacks the leaves of trees along a new first axis."""
    return jax.tree.map(lambda *x: jnp.stack(x), *trees)


def unstack(tree: Any) -> list[Any]:
    """Inverts `stack`."""
    leaves, structure = jax.tree.flatten(tree)
    each = zip(*[jnp.unstack(leaf) for leaf in leaves], strict=True)
    return [structure.unflatten(part) for part in each]


def _automatic(update_tensors: Any, tensors: Sequence[Tensor], shared: Any) -> Any:
    """Leaves shardings inside to XLA where they are part of types.

    Rules reshape and stack tensors as they like, which explicit shardings forbid.
    """
    spec = lambda x: jax.typeof(x).sharding.spec
    meshes = [jax.typeof(t.grad).sharding.mesh for t in tensors]
    if not any(mesh.explicit_axes for mesh in meshes):
        return update_tensors
    out = (
        [(spec(t.grad), jax.tree.map(spec, t.state)) for t in tensors],
        jax.tree.map(spec, shared),
    )
    static = [(t.place, t.name) for t in tensors]  # neither is an array

    def on_arrays(theta, arrays, shared, clock):
        rebuilt = [
            Tensor(grad, param, state, place, name)
            for (grad, param, state), (place, name) in zip(arrays, static, strict=True)
        ]
        return update_tensors(theta, rebuilt, shared, clock)

    automatic = jax.sharding.auto_axes(on_arrays, out_sharding=out)

    def on_tensors(theta, tensors, shared, clock):
        arrays = [(t.grad, t.param, t.state) for t in tensors]
        return cast(Any, automatic)(theta, arrays, shared, clock)

    return on_tensors


def _clock(count: Int[Array, ""], num_steps: NumSteps, value: Any) -> Clock:
    total = jnp.maximum(jnp.asarray(num_steps, jnp.float32), 1.0)
    last = jnp.asarray(total, jnp.int32) - 1
    loss = None if value is None else jnp.asarray(value, jnp.float32)
    return Clock(jnp.minimum(count, last), count, total, loss)


def _check_floating(what: str, tree: Any) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        try:
            found = jnp.result_type(leaf)
        except TypeError:  # a function in a model, or a text
            found = type(leaf).__name__
        if isinstance(found, str) or not jnp.issubdtype(found, jnp.floating):
            raise UserError(
                f"{what} must be real floating-point numbers; got "
                f"{found} at {jax.tree_util.keystr(path) or 'the only leaf'}. Try "
                "`optax.masked`, which leaves such leaves out; of an Equinox model, "
                "`eqx.filter(model, eqx.is_inexact_array)`."
            )


def _check_alike(grads: Sequence[Any], params: Sequence[Any]) -> None:
    for grad, param in zip(grads, params, strict=True):
        if grad is None or (param is not None and jnp.shape(grad) == jnp.shape(param)):
            continue
        found = "none" if param is None else f"one of shape {jnp.shape(param)}"
        raise UserError(
            "parameters must have the shapes of their gradients; got "
            f"{found} for a gradient of shape {jnp.shape(grad)}."
        )


def _flatten(tree: Any) -> tuple[list[Any], Any]:
    # A `None` is a leaf, so that gradients may lack what the parameters have.
    return jax.tree.flatten(tree, is_leaf=lambda x: x is None)


def _names(tree: Any) -> list[str]:
    paths, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is None)
    return [leaf_name(path).lower() for path, _ in paths]


def leaf_name(path: Sequence[Any]) -> str:
    """Last key of a path; wrappers of NNX variables and of boxes are skipped."""
    keys = [jax.tree_util.keystr((key,), simple=True) for key in path]
    names = [key for key in keys if key != "value"]
    return names[-1] if names else ""


def _align(treedef: Any, tree: Any) -> list[Any]:
    """Returns the leaves of `tree`, which must be like another one."""
    try:
        return treedef.flatten_up_to(tree)
    except ValueError as error:
        raise UserError(
            "gradients, parameters and state must be trees of the same structure; "
            f"{error}. Call `init` again when the parameters change."
        ) from error


def _gather(states: Sequence[Sequence[Any]], treedef: Any, structure: Any) -> Any:
    """Turns states of tensors into trees like the parameters, one for each leaf."""
    columns = [
        treedef.unflatten([state[i] for state in states])
        for i in range(structure.num_leaves)
    ]
    return structure.unflatten(columns)


def _vector(leaf: Any) -> Array:
    """Returns a leaf as an array; a scalar as a vector of length one."""
    array = jnp.asarray(leaf)
    return array.reshape(1) if array.ndim == 0 else array
