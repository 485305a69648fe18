"""Systems with a known exact meta-gradient, and the mean of estimates of it.

Only the horizon is random, so one differentiation per horizon gives the exact gradient.
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from lopt.optimizers.scheduled_sgd import ScheduledSGD
from meta_train.core.inner_training import InnerTraining
from meta_train.core.objectives import OBJECTIVES, LogLoss
from meta_train.core.truncation import Truncation
from meta_train.core.unroll import unroll
from tasks.base import Task, UnrolledSystem
from tasks.systems.influence_balancing import InfluenceBalancing

HORIZON = 12


@dataclass(frozen=True)
class Recurrence(UnrolledSystem):
    """Small recurrent network with a target; its initial state depends on theta."""

    def load(self):
        return ()

    def init_theta(self, key):
        matrix = jnp.asarray([[0.6, -0.9], [0.8, 0.5]])
        return {"matrix": matrix, "bias": jnp.asarray([0.1, -0.2])}

    def init_state(self, theta, data, horizon, key):
        return {"hidden": 0.5 + theta["bias"], "count": jnp.zeros((), jnp.int32)}

    def sample_input(self, data, state, key):
        return None

    def step(self, theta, state, x):
        hidden = jnp.tanh(theta["matrix"] @ state["hidden"] + theta["bias"])
        loss = jnp.sum((hidden - jnp.asarray([0.5, 0.2])) ** 2)
        return {"hidden": hidden, "count": state["count"] + 1}, loss


@dataclass(frozen=True)
class FullBatchMLP(Task):
    """Tanh network on eight fixed points, with fixed initial parameters."""

    def load(self, split="train"):
        inputs = jnp.linspace(-1.0, 1.0, 8)[:, None]
        return inputs, jnp.sin(3 * inputs)

    def init_params(self, key):
        first = jnp.asarray([[1.0, -0.7, 0.4]])
        return {"first": first, "bias": jnp.zeros(3), "last": 0.5 * first.T}

    def sample_batch(self, data, key):
        return data

    def loss(self, params, batch):
        inputs, targets = batch
        hidden = jnp.tanh(inputs @ params["first"] + params["bias"][None, :])
        return jnp.mean((hidden @ params["last"] - targets) ** 2)


@dataclass(frozen=True)
class Problem:
    """A system, the scale of perturbations, and the range of horizons."""

    system: UnrolledSystem
    std: float
    min_horizon: int | None = None

    def truncation(self, length):
        return Truncation(length, HORIZON, min_horizon=self.min_horizon)

    @functools.cached_property
    def data(self):
        return self.system.load()

    @functools.cached_property
    def theta(self):
        return self.system.init_theta(jax.random.key(0))


PROBLEMS = {
    # Quadratic in theta, so Gaussian smoothing of any scale keeps the gradient.
    "influence balancing": Problem(InfluenceBalancing(dim=5, num_positive=2), std=0.1),
    "recurrence": Problem(Recurrence(), std=0.01),
    "schedule": Problem(
        InnerTraining(FullBatchMLP(), ScheduledSGD(initial_lr=0.3)), std=0.03
    ),
    "random horizon": Problem(Recurrence(), std=0.01, min_horizon=4),
}


def total(objective, losses):
    """Compute the horizon times an objective from the plain losses."""
    num = len(losses)
    if objective.endswith("log"):
        epsilon = LogLoss.epsilon
        losses = jnp.sign(losses) * jnp.log1p(jnp.abs(losses) / epsilon)
    if objective.startswith("final"):
        return num * losses[-1]
    if objective.startswith("late"):
        losses = losses * 2 * jnp.arange(1, num + 1) / (num + 1)
    return losses.sum()


@functools.cache
def exact_gradient(name, objective, length):
    """Compute the exact meta-gradient by differentiation of the plain losses."""
    problem = PROBLEMS[name]
    system, data = problem.system, problem.data
    truncation = problem.truncation(length)

    def value(theta, horizon):
        key = jax.random.key(0)
        state = system.init_state(theta, data, horizon, key)
        losses = unroll(system, data, theta, state, horizon, key)[1]
        return total(objective, losses)

    whole = sum(
        probability * ravel_pytree(jax.grad(value)(problem.theta, horizon))[0]
        for horizon, probability in truncation.horizon_probabilities().items()
    )
    return np.asarray(whole / truncation.mean_horizon())


def mean_and_error(estimator, name, objective, key, enough=0.0):
    """Compute the mean estimate at a fixed theta and its standard error.

    Repeats until the standard error is at most `enough`, for at most 40 batches.
    """
    problem = PROBLEMS[name]
    system, data, theta = problem.system, problem.data, problem.theta
    system = OBJECTIVES[objective](system)
    num_windows = HORIZON // estimator.truncation.length

    def window(state, key):
        estimate, state = estimator.update(system, data, theta, state, key)
        return state, ravel_pytree(estimate.grad)[0]

    def repeat(key):
        key_init, key_first, key_windows = jax.random.split(key, 3)
        state = estimator.init(system, data, theta, key_init)
        # Discard the first episodes, which are shortened by staggering.
        keys = jax.random.split(key_first, 2 * num_windows)
        state, _ = jax.lax.scan(window, state, keys)
        keys = jax.random.split(key_windows, num_windows)
        return jax.lax.scan(window, state, keys)[1].mean(axis=0)

    some = jax.jit(lambda keys: jax.lax.map(repeat, keys))
    means, error = np.zeros((0, exact_gradient(name, objective, 1).size)), np.inf
    for i in range(40):
        keys = jax.random.split(jax.random.fold_in(key, i), 16)
        means = np.concatenate([means, some(keys)])
        error = np.sqrt(means.var(axis=0, ddof=1).sum() / len(means))
        if error <= enough:
            break
    return means.mean(axis=0), error
