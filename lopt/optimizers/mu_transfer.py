"""Width transfer of updates by muP (Yang et al., 2022, arXiv:2203.03466)."""

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
from lopt.optimizers.per_parameter_mlp import PerParameterMLP
from lopt.pytrees import leaf_name


@dataclass(frozen=True)
class MuTransfer(LearnedOptimizer):
    """Scale an optimizer's updates of hidden matrices by ``base_fan_in / fan_in``.

    The change of activations per step is then independent of the width. See
    `hidden_factors` for the definition of hidden matrices.
    """

    optimizer: LearnedOptimizer = PerParameterMLP()
    """Learned optimizer whose updates are scaled. It defines `theta`."""
    base_fan_in: int = 1
    """Fan-in at which the factor is one: the width used in meta-training."""

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
            # Prefer the parameters: gradients may be `None` for tensors whose shapes
            # determine which other matrices are hidden.
            shapes = updates if params is None else params
            factors = hidden_factors(shapes, self.base_fan_in)

            def scale(x, factor):
                return None if x is None else x * factor

            def is_none(x):
                return x is None

            return jax.tree.map(scale, updates, factors, is_leaf=is_none), state

        return optax.GradientTransformationExtraArgs(inner.init, update)


def hidden_factors(params: Any, base_fan_in: int = 1) -> Any:
    """Compute the muP factor of each tensor's update from the shapes of all tensors.

    The factor is ``base_fan_in / fan_in`` for hidden matrices and 1 otherwise. Matrices
    have shape ``(..., in, out)``, as in Flax. Their fan-in is the product of all
    dimensions but the last.

    A matrix is hidden if `in` is the last dimension of another tensor, and `out` is the
    `in` of another matrix. The input of the first layer has no such producer, and the
    output of the last layer no such consumer. Leaves named `embedding` (Flax) are
    lookup tables: they are never hidden and are not consumers.

    Shapes alone are ambiguous in these cases:

    - A first layer is classified as hidden if the data dimension equals the width of a
      hidden layer or the number of outputs, as in an autoencoder.
    - A layer before a flattening is not classified as hidden.
    - Attention kernels with an axis for the heads do not end in ``(in, out)`` and are
      not classified as hidden.
    - A matrix is not classified as hidden if `optax.masked` or `multi_transform` masks
      the adjacent tensors.

    Args:
        params: Pytree of arrays.
        base_fan_in: Fan-in at which the factor is one.

    Returns:
        A pytree of floats with the structure of `params`.
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
