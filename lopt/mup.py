"""Updates that fit any width: muP (Yang et al., 2022, arXiv:2203.03466)."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PRNGKeyArray
from typing_extensions import override

from lopt.base import LearnedOptimizer, NumSteps, Theta
from lopt.errors import UserError
from lopt.mlp import PerParameterMLP
from lopt.tensors import leaf_name


@dataclass(frozen=True)
class MuTransfer(LearnedOptimizer):
    """Scales an optimizer's updates of hidden matrices by one over their fan-in.

    A step then changes the activations as much in a wide network as in a narrow one.
    See `hidden_factors` for which matrices are hidden.
    """

    optimizer: LearnedOptimizer = PerParameterMLP()
    """Whose updates are scaled; theta is its own."""
    base_fan_in: int = 1
    """Fan-in at which the factor is one: the width that theta was trained at."""

    def __post_init__(self):
        if self.base_fan_in < 1:
            raise UserError(
                f"`base_fan_in` must be at least 1; got {self.base_fan_in}. Try 1."
            )

    @override
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        return self.optimizer.init_theta(key)

    @override
    def as_optax(
        self, theta: Theta, num_steps: NumSteps
    ) -> optax.GradientTransformationExtraArgs:
        inner = self.optimizer.as_optax(theta, num_steps)

        def update(updates, state, params=None, **extra_args):
            updates, state = inner.update(updates, state, params, **extra_args)
            # Gradients may lack tensors that the shapes of others are explained by.
            shapes = updates if params is None else params
            factors = hidden_factors(shapes, self.base_fan_in)
            scale = lambda x, factor: None if x is None else x * factor
            is_none = lambda x: x is None
            return jax.tree.map(scale, updates, factors, is_leaf=is_none), state

        return optax.GradientTransformationExtraArgs(inner.init, update)


def hidden_factors(params: Any, base_fan_in: int = 1) -> Any:
    """Returns what the update of each tensor is to be multiplied by, as a like tree.

    That is `base_fan_in` over the fan-in for hidden matrices, and one for the rest. A
    matrix is of shape ``(..., in, out)``, as in Flax, and its fan-in the product of all
    dimensions but the last. It is hidden if another tensor ends in its `in`, and its
    `out` is the `in` of another matrix: nothing makes the input of the first layer, and
    nothing takes the output of the last. Tables that Flax calls `embedding` are looked
    up in: they are not hidden, and take no activations.

    Sizes that coincide by chance mislead: a first layer is held to be hidden if the
    data have as many dimensions as a hidden layer or as there are outputs, as in
    an autoencoder; a layer before a flattening is not. Nor are kernels with an axis for
    the heads of attention, which do not end in ``(in, out)``. Nor is anything where
    `optax.masked` or `multi_transform` hides the tensors around it.
    """
    paths, treedef = jax.tree_util.tree_flatten_with_path(params)
    shapes = [jnp.shape(leaf) for _, leaf in paths]
    is_matrix = [
        len(shape) >= 2 and leaf_name(path) != "embedding"
        for shape, (path, _) in zip(shapes, paths, strict=True)
    ]

    def factor(i: int) -> float:
        others = [j for j in range(len(shapes)) if j != i]
        hidden = (
            is_matrix[i]
            and any(shapes[j] and shapes[j][-1] == shapes[i][-2] for j in others)
            and any(is_matrix[j] and shapes[j][-2] == shapes[i][-1] for j in others)
        )
        return base_fan_in / max(math.prod(shapes[i][:-1]), 1) if hidden else 1.0

    return treedef.unflatten([factor(i) for i in range(len(shapes))])
