"""Flatten, validate and name the leaves of gradients, parameters and states."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from lopt.errors import UserError


def check_floating(what: str, tree: Any) -> None:
    """Raise a `UserError` for leaves that are not real floating-point numbers."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        try:
            found = jnp.result_type(leaf)
        except TypeError:  # not an array, such as a function or a string in a model
            found = type(leaf).__name__
        if isinstance(found, str) or not jnp.issubdtype(found, jnp.floating):
            raise UserError(
                f"{what} must be real floating-point numbers; got "
                f"{found} at {jax.tree_util.keystr(path) or 'the only leaf'}. Try "
                "`optax.masked`, which leaves such leaves out; of an Equinox model, "
                "`eqx.filter(model, eqx.is_inexact_array)`."
            )


def check_alike(grads: Sequence[Any], params: Sequence[Any]) -> None:
    """Raise a `UserError` unless gradients and parameters have the same shapes."""
    for grad, param in zip(grads, params, strict=True):
        if grad is None or (param is not None and jnp.shape(grad) == jnp.shape(param)):
            continue
        found = "none" if param is None else f"one of shape {jnp.shape(param)}"
        raise UserError(
            "parameters must have the shapes of their gradients; got "
            f"{found} for a gradient of shape {jnp.shape(grad)}."
        )


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Flatten a pytree; `None` counts as a leaf, since gradients may be `None`."""
    return jax.tree.flatten(tree, is_leaf=lambda x: x is None)


def all_keys(tree: Any) -> list[list[str]]:
    """List the keys of each leaf's path (see `_keys`)."""
    paths, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is None)
    return [_keys(path) for path, _ in paths]


def leaf_name(path: Sequence[Any]) -> str:
    """Last key of a path, or an empty string."""
    return next(reversed(_keys(path)), "")


def _keys(path: Sequence[Any]) -> list[str]:
    """Keys of a path, ignoring the `value` of NNX variables and Flax boxes."""
    keys = [jax.tree_util.keystr((key,), simple=True) for key in path]
    return [key for key in keys if key != "value"]


def align(treedef: Any, tree: Any) -> list[Any]:
    """Flatten `tree` up to `treedef`; raise a `UserError` if it does not match."""
    try:
        return treedef.flatten_up_to(tree)
    except ValueError as error:
        raise UserError(
            "gradients, parameters and state must be trees of the same structure; "
            f"{error}. Call `init` again when the parameters change."
        ) from error


def gather(states: Sequence[Sequence[Any]], treedef: Any, structure: Any) -> Any:
    """Transpose per-tensor states into `LearnedState.tensors`.

    Args:
        states: Leaves of each tensor's state.
        treedef: Structure of the parameters.
        structure: Structure of one tensor's state.
    """
    columns = [
        treedef.unflatten([state[i] for state in states])
        for i in range(structure.num_leaves)
    ]
    return structure.unflatten(columns)


def vector(leaf: Any) -> Array:
    """Convert a leaf to an array, and a scalar to a vector of length one."""
    array = jnp.asarray(leaf)
    return array.reshape(1) if array.ndim == 0 else array


def as_array(value: Any) -> Array:
    """Convert a Python number of a state to an array; floats become float32."""
    return jnp.asarray(value, jnp.float32 if isinstance(value, float) else None)


def float32_vector(leaf: Any) -> Array:
    """Convert a leaf to a float32 array of rank one or more."""
    return vector(leaf).astype(jnp.float32)


def check_result(name: str, grad: Array, state: Any, result: tuple[Array, Any]) -> None:
    """Raise if an update rule changes shapes, dtypes or the structure of a state.

    XLA would otherwise report a loop whose carry changes its type, and name neither the
    class nor the tensor.

    Args:
        name: Class of the update rule.
        grad: Gradient of the tensor.
        state: State before the update.
        result: Update and new state.
    """
    step, new_state = result
    if jnp.shape(step) != grad.shape:
        raise UserError(
            f"the update rule of {name} must return an update of the shape of the "
            f"gradient; got {jnp.shape(step)} for a gradient of shape {grad.shape}."
        )
    old, new = (jax.tree.map(_shape_and_dtype, tree) for tree in (state, new_state))
    if old != new:
        raise UserError(
            f"the update rule of {name} must return a state like that of "
            f"`init_tensor`, with equal shapes and dtypes; got {new} instead of {old} "
            f"for a gradient of shape {grad.shape}. Arrays without an explicit dtype "
            "are float64 with `jax_enable_x64`: try jnp.float32."
        )


def _shape_and_dtype(x: Any) -> str:
    return f"{jnp.result_type(x)}{list(jnp.shape(x))}"
