"""Batch tensors of one shape, so that an update compiles once per shape."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lopt.adapter import LeafInputs


def group(
    tensors: Sequence[LeafInputs], key: Callable[[LeafInputs], Any]
) -> dict[Any, list[int]]:
    """Group the indices of `tensors` by `key`, in order of first occurrence."""
    groups: dict[Any, list[int]] = {}
    for i, tensor in enumerate(tensors):
        groups.setdefault(key(tensor), []).append(i)
    return groups


def stack(trees: Sequence[Any]) -> Any:
    """Stack the leaves of pytrees along a new leading axis."""
    return jax.tree.map(lambda *x: jnp.stack(x), *trees)


def unstack(tree: Any) -> list[Any]:
    """Invert `stack`."""
    leaves, structure = jax.tree.flatten(tree)
    each = zip(*[jnp.unstack(leaf) for leaf in leaves], strict=True)
    return [structure.unflatten(part) for part in each]


def split(tree: Any, groups: dict[Any, list[int]]) -> list[Any]:
    """Split the leaves of `tree` along the first axis into one part per group."""
    ends = np.cumsum([len(members) for members in groups.values()])[:-1]
    parts = [jnp.split(x, ends) for x in jax.tree.leaves(tree)]
    structure = jax.tree.structure(tree)
    return [structure.unflatten(part) for part in zip(*parts, strict=True)]
