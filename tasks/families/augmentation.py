"""Task augmentations: wrappers that randomize a problem in every episode."""

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
    """Family that modifies the problems of another family with random constants."""

    task: Family
    """The wrapped family."""

    @abstractmethod
    def sample(self, key: PRNGKeyArray) -> Constants:
        """Draw the constants of this wrapper, without those of the wrapped family."""

    @abstractmethod
    def augment(self, problem: Problem, constants: Constants) -> Problem:
        """Apply the augmentation to a problem of the wrapped family."""

    @override
    def load(self, split: Split = "train") -> Data:
        return self.task.load(split)

    @override
    def sample_constants(self, key: PRNGKeyArray) -> Constants:
        key_own, key_task = jax.random.split(key)
        return self.sample(key_own), self.task.sample_constants(key_task)

    @override
    def problem(self, constants: Constants) -> Problem:
        own, rest = constants
        return self.augment(self.task.problem(rest), own)

    def like_params(self) -> PyTree[jax.ShapeDtypeStruct]:
        """Compute the shapes and dtypes of `params`, without initializing them."""

        def init(key):
            return self.task.problem(self.task.sample_constants(key)).init_params(key)

        return jax.eval_shape(init, jax.random.key(0))


@dataclass(frozen=True)
class LogUniform(Augmentation):
    """Augmentation by factors drawn log-uniformly from ``[low, high]``."""

    low: float = 0.1
    """Smallest factor."""
    high: float = 10.0
    """Largest factor. Factors are log-uniform."""

    def __post_init__(self):
        if not 0 < self.low <= self.high < math.inf:
            raise ValueError(
                "`low` and `high` must be positive and in this order; got "
                f"low={self.low}, high={self.high}. Try low=0.1, high=10."
            )

    def factors(self, shape: tuple[int, ...], key: PRNGKeyArray) -> Float[Array, "..."]:
        """Draw an array of log-uniform factors."""
        low, high = math.log(self.low), math.log(self.high)
        return jnp.exp(jax.random.uniform(key, shape, minval=low, maxval=high))

    @override
    def sample(self, key: PRNGKeyArray) -> Constants:
        return self.factors((), key)


@dataclass(frozen=True)
class Reparameterized(LogUniform):
    """Rescale `params` by random factors, leaving the function unchanged.

    Parameters ``w`` are stored as ``w / factor`` and multiplied by ``factor`` in the
    loss, which scales their gradients by ``factor``.
    """

    per: Literal["run", "tensor", "parameter"] = "tensor"
    """Granularity of the factors: one per run, per tensor or per scalar parameter."""

    @override
    def sample(self, key: PRNGKeyArray) -> Constants:
        like = self.like_params()
        if self.per == "run":
            factor = self.factors((), key)
            return jax.tree.map(lambda _: factor, like)
        keys = optax.tree.split_key_like(key, like)

        def shape(x):
            return x.shape if self.per == "parameter" else ()

        return jax.tree.map(lambda x, k: self.factors(shape(x), k), like, keys)

    @override
    def augment(self, problem: Problem, constants: Constants) -> Problem:
        def unscaled(function):
            def times(p, factor):
                return (p * factor).astype(p.dtype)

            return lambda params, batch: function(
                jax.tree.map(times, params, constants), batch
            )

        def init(key):
            def divide(w, factor):
                return (w / factor).astype(w.dtype)

            return jax.tree.map(divide, problem.init_params(key), constants)

        return problem._replace(
            init_params=init,
            loss=unscaled(problem.loss),
            measure=problem.measure and unscaled(problem.measure),
            error=problem.error and unscaled(problem.error),
        )


@dataclass(frozen=True)
class InitialScale(LogUniform):
    """Multiply the initial parameters by one random factor."""

    @override
    def augment(self, problem: Problem, constants: Constants) -> Problem:
        def init(key):
            def times(w):
                return (w * constants).astype(w.dtype)

            return jax.tree.map(times, problem.init_params(key))

        return problem._replace(init_params=init)


@dataclass(frozen=True)
class ScaledLoss(LogUniform):
    """Multiply the training loss by one random factor; `measure` is not scaled."""

    @override
    def augment(self, problem: Problem, constants: Constants) -> Problem:
        def scaled(params, batch):
            return constants * problem.loss(params, batch)

        return problem._replace(loss=scaled, measure=problem.reported)


@dataclass(frozen=True)
class NoisyGradient(Augmentation):
    """Add Gaussian noise to every gradient."""

    std: float = 0.01
    """Standard deviation of the noise, per parameter."""

    @override
    def sample(self, key: PRNGKeyArray) -> Constants:
        return ()

    @override
    def augment(self, problem: Problem, constants: Constants) -> Problem:
        def sample_batch(data, key):
            key_batch, key_noise = jax.random.split(key)
            noise = optax.tree.random_like(key_noise, self.like_params())
            noise = optax.tree.scale(self.std, noise)
            return problem.sample_batch(data, key_batch), noise

        def loss(params, noisy):
            batch, noise = noisy
            # The inner product below has value 0 and gradient `noise`.
            nothing = optax.tree.sub(params, jax.lax.stop_gradient(params))
            return problem.loss(params, batch) + optax.tree.vdot(nothing, noise)

        def quiet(function):
            return lambda params, noisy: function(params, noisy[0])

        return problem._replace(
            sample_batch=sample_batch,
            loss=loss,
            measure=quiet(problem.reported),
            error=problem.error and quiet(problem.error),
        )


@dataclass(frozen=True)
class SmallerBatches(Augmentation):
    """Reduce the effective batch size by a random power of two.

    The number of halvings is uniform on ``{0, ..., num_halvings}``. The remaining
    examples are repeated to fill the batch. Shapes are therefore static, one compiled
    program serves all batch sizes, and the gradient equals that of the smaller batch.
    """

    num_halvings: int = 4
    """Maximum number of halvings. ``2**num_halvings`` must divide the batch size."""

    @override
    def sample(self, key: PRNGKeyArray) -> Constants:
        return jax.random.randint(key, (), 0, self.num_halvings + 1, jnp.int32)

    @override
    def augment(self, problem: Problem, constants: Constants) -> Problem:
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
