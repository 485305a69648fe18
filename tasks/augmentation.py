"""Wrappers around any task: the same problem, seen otherwise in every episode."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree
from typing_extensions import override

from tasks.base import Constants, Data, Family, Problem, Split


@dataclass(frozen=True)
class Augmentation(Family):
    """A family made of another: constants are drawn and change the problem."""

    task: Family

    @abstractmethod
    def sample(self, key: PRNGKeyArray) -> Constants:
        """Draws the constants of this wrapper alone."""

    @abstractmethod
    def change(self, problem: Problem, constants: Constants) -> Problem:
        """Returns the problem, changed."""

    @override
    def load(self, split: Split = "train") -> Data:
        return self.task.load(split)

    @override
    def draw(self, key: PRNGKeyArray) -> Constants:
        key_own, key_task = jax.random.split(key)
        return self.sample(key_own), self.task.draw(key_task)

    @override
    def at(self, constants: Constants) -> Problem:
        own, rest = constants
        return self.change(self.task.at(rest), own)

    def like_params(self) -> PyTree[jax.ShapeDtypeStruct]:
        """Returns the shapes of the parameters."""
        init = lambda key: self.task.at(self.task.draw(key)).init_params(key)
        return jax.eval_shape(init, jax.random.key(0))


@dataclass(frozen=True)
class LogUniform(Augmentation):
    """Wrappers whose constants are factors."""

    low: float = 0.1
    """The smallest factor."""
    high: float = 10.0
    """The largest; they are spread evenly in the logarithm."""

    def __post_init__(self):
        if not 0 < self.low <= self.high < math.inf:
            raise ValueError(
                "`low` and `high` must be positive and in this order; got "
                f"low={self.low}, high={self.high}. Try low=0.1, high=10."
            )

    def factors(self, shape: tuple[int, ...], key: PRNGKeyArray) -> Float[Array, "..."]:
        """Draws factors."""
        low, high = math.log(self.low), math.log(self.high)
        return jnp.exp(jax.random.uniform(key, shape, minval=low, maxval=high))

    @override
    def sample(self, key: PRNGKeyArray) -> Constants:
        return self.factors((), key)


@dataclass(frozen=True)
class Reparameterized(LogUniform):
    """Parameters are stored divided by a factor: the same function, other slopes."""

    per: Literal["run", "tensor", "parameter"] = "tensor"
    """What has a factor of its own."""

    @override
    def sample(self, key: PRNGKeyArray) -> Constants:
        like = self.like_params()
        if self.per == "run":
            factor = self.factors((), key)
            return jax.tree.map(lambda _: factor, like)
        keys = optax.tree.split_key_like(key, like)
        shape = lambda x: x.shape if self.per == "parameter" else ()
        return jax.tree.map(lambda x, k: self.factors(shape(x), k), like, keys)

    @override
    def change(self, problem: Problem, constants: Constants) -> Problem:
        def unscaled(function):
            times = lambda p, factor: (p * factor).astype(p.dtype)
            return lambda params, batch: function(
                jax.tree.map(times, params, constants), batch
            )

        def init(key):
            divide = lambda w, factor: (w / factor).astype(w.dtype)
            return jax.tree.map(divide, problem.init_params(key), constants)

        loss = unscaled(problem.loss)
        same = problem.measure == problem.loss
        return problem._replace(
            init_params=init,
            loss=loss,
            measure=loss if same else unscaled(problem.measure),
            error=problem.error and unscaled(problem.error),
        )


@dataclass(frozen=True)
class InitialScale(LogUniform):
    """Initial parameters are multiplied by a factor."""

    @override
    def change(self, problem: Problem, constants: Constants) -> Problem:
        def init(key):
            times = lambda w: (w * constants).astype(w.dtype)
            return jax.tree.map(times, problem.init_params(key))

        return problem._replace(init_params=init)


@dataclass(frozen=True)
class ScaledLoss(LogUniform):
    """Training lowers the loss times a factor; it is measured without."""

    @override
    def change(self, problem: Problem, constants: Constants) -> Problem:
        scaled = lambda params, batch: constants * problem.loss(params, batch)
        return problem._replace(loss=scaled)


@dataclass(frozen=True)
class NoisyGradient(Augmentation):
    """Noise is added to every gradient."""

    std: float = 0.01
    """Its standard deviation in each parameter."""

    @override
    def sample(self, key: PRNGKeyArray) -> Constants:
        return ()

    @override
    def change(self, problem: Problem, constants: Constants) -> Problem:
        def sample_batch(data, key):
            key_batch, key_noise = jax.random.split(key)
            noise = optax.tree.random_like(key_noise, self.like_params())
            noise = optax.tree.scale(self.std, noise)
            return problem.sample_batch(data, key_batch), noise

        def loss(params, noisy):
            batch, noise = noisy
            # Zero, with the noise as its gradient.
            nothing = optax.tree.sub(params, jax.lax.stop_gradient(params))
            return problem.loss(params, batch) + optax.tree.vdot(nothing, noise)

        quiet = lambda function: lambda params, noisy: function(params, noisy[0])
        return problem._replace(
            sample_batch=sample_batch,
            loss=loss,
            measure=quiet(problem.measure),
            error=problem.error and quiet(problem.error),
        )


@dataclass(frozen=True)
class SmallerBatches(Augmentation):
    """Batches have only a half, a quarter and so on of their examples, repeated.

    The shape stays, so one program serves all; the gradient is that of the few.
    """

    num_halvings: int = 4
    """At most so many."""

    @override
    def sample(self, key: PRNGKeyArray) -> Constants:
        return jax.random.randint(key, (), 0, self.num_halvings + 1, jnp.int32)

    @override
    def change(self, problem: Problem, constants: Constants) -> Problem:
        def sample_batch(data, key):
            batch = problem.sample_batch(data, key)
            num = len(jax.tree.leaves(batch)[0])
            if num % 2**self.num_halvings:
                raise ValueError(
                    f"A batch must be divisible by 2**{self.num_halvings} to be "
                    f"halved so often; it has {num} examples. Try num_halvings=1."
                )
            rows = jnp.arange(num) % (num // 2**constants)
            return jax.tree.map(lambda x: x[rows], batch)

        return problem._replace(sample_batch=sample_batch)
