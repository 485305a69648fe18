"""How large a task is and what a step of it costs, from shapes alone."""

import functools
from typing import Any, NamedTuple

import jax

from tasks import datasets
from tasks.base import Family
from tasks.supervised import Supervised


class Size(NamedTuple):
    """Of a task.

    Attributes:
        params: The shapes of its parameters.
        num_parameters: How many numbers that are.
        flops: To take the gradient of one batch, as jax counts before compiling.
    """

    params: Any
    num_parameters: int
    flops: float


@functools.cache
def size(family: Family) -> Size:
    """Returns the size of a task; wrappers around it cost nothing to speak of."""
    while hasattr(family, "task"):
        family = family.task  # pyright: ignore[reportAttributeAccessIssue]
    data = (
        datasets.get(family.dataset).like()
        if isinstance(family, Supervised)
        else family.load()
    )

    def start(data, key):
        problem = family.at(family.draw(key))
        return problem.init_params(key), problem.sample_batch(data, key)

    def gradient(params, batch, key):
        return jax.value_and_grad(family.at(family.draw(key)).loss)(params, batch)

    key = jax.random.key(0)
    params, batch = jax.eval_shape(start, data, key)
    lowered = jax.jit(gradient).lower(params, batch, key)
    flops = (lowered.cost_analysis() or {}).get("flops", float("nan"))
    num = sum(x.size for x in jax.tree.leaves(params))
    return Size(params, num, flops)
