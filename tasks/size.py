"""Parameter counts and gradient FLOPs of tasks, without running them."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lopt.errors import UserError
from tasks import datasets
from tasks.base import Family
from tasks.supervised.base import Supervised


class Size(NamedTuple):
    """Size of a task.

    Attributes:
        params: Pytree of `jax.ShapeDtypeStruct` with the structure of `params`.
        num_parameters: Total number of scalar parameters.
        flops: FLOPs of the loss and its gradient on one batch, by JAX's cost analysis
            of the program before compilation. NaN if the analysis is not available.
    """

    params: Any
    num_parameters: int
    flops: float


def num_parameters(family: Family) -> int:
    """Count the parameters of a task, without tracing its loss."""

    def init(key):
        return family.problem(family.sample_constants(key)).init_params(key)

    shapes = jax.eval_shape(init, jax.random.key(0))
    return sum(x.size for x in jax.tree.leaves(shapes))


def check_scalar_loss(family: Family, params: Any, batch: Any, key: Any) -> None:
    """Validate the shape of a loss by abstract evaluation.

    Raises:
        UserError: If the loss of the task is not a scalar.
    """

    def loss(params, batch, key):
        return family.problem(family.sample_constants(key)).loss(params, batch)

    shape = jax.tree.map(jnp.shape, jax.eval_shape(loss, params, batch, key))
    if shape != ():
        raise UserError(
            f"`loss` of {type(family).__name__} must return a scalar; got shape "
            f"{shape}. Try its mean."
        )


@functools.cache
def size(family: Family) -> Size:
    """Compute the size of a task.

    Augmentations are removed first, since their cost is negligible. Supervised tasks on
    registered datasets need no files. Other tasks load their training split.
    """
    while hasattr(family, "task"):
        family = family.task  # pyright: ignore[reportAttributeAccessIssue]
    data = (
        datasets.get(family.dataset).like()
        if isinstance(family, Supervised)
        else family.load()
    )

    def start(data, key):
        problem = family.problem(family.sample_constants(key))
        return problem.init_params(key), problem.sample_batch(data, key)

    def gradient(params, batch, key):
        return jax.value_and_grad(family.problem(family.sample_constants(key)).loss)(
            params, batch
        )

    key = jax.random.key(0)
    params, batch = jax.eval_shape(start, data, key)
    check_scalar_loss(family, params, batch, key)
    lowered = jax.jit(gradient).lower(params, batch, key)
    flops = (lowered.cost_analysis() or {}).get("flops", float("nan"))
    num = sum(x.size for x in jax.tree.leaves(params))
    return Size(params, num, flops)
