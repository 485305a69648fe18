"""Classification of endless data, labeled by a random network."""

from dataclasses import dataclass
from typing import cast

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PRNGKeyArray
from typing_extensions import override

from tasks.base import Constants, Data, Family, Input, Loss, Params, Problem, Split
from tasks.supervised.mlp import Network


@dataclass(frozen=True)
class TeacherStudent(Family):
    """MLP that learns the noisy labels of a random teacher, new in every episode.

    Inputs are Gaussian, with standard deviations that decay as ``1 / sqrt(i)``. Labels
    are sampled from the softmax of the teacher's logits. No batch is seen twice, so the
    training loss is a test loss, and gradient noise dominates the end of a run.
    """

    dim: int = 64
    """Number of inputs."""
    num_classes: int = 10
    """Number of classes."""
    width: int = 96
    """Units in each hidden layer of the student."""
    depth: int = 2
    """Number of hidden layers of the student."""
    teacher_width: int = 32
    """Units in the hidden layer of the teacher."""
    gain: float = 3.0
    """Standard deviation of the teacher's logits; small values give noisy labels."""
    batch_size: int = 32
    """Examples per batch."""

    def __post_init__(self):
        sizes = (self.dim, self.num_classes, self.width, self.teacher_width)
        if min(*sizes, self.batch_size) < 1 or self.depth < 0 or not self.gain > 0:
            raise ValueError(
                "sizes must be at least 1, `depth` not negative and `gain` positive; "
                f"got {self}. Try TeacherStudent()."
            )

    @override
    def load(self, split: Split = "train") -> Data:
        return ()

    @override
    def sample_constants(self, key: PRNGKeyArray) -> Constants:
        key_1, key_2 = jax.random.split(key)
        first = jax.random.normal(key_1, (self.dim, self.teacher_width))
        second = jax.random.normal(key_2, (self.teacher_width, self.num_classes))
        return first / self.dim**0.5, second * (2 / self.teacher_width) ** 0.5

    @override
    def problem(self, constants: Constants) -> Problem:
        student = Network((self.width,) * self.depth, self.num_classes, "relu")
        scale = 1 / jnp.sqrt(jnp.arange(1, self.dim + 1, dtype=jnp.float32))
        scale /= jnp.sqrt(jnp.mean(jnp.square(scale)))

        def init_params(key: PRNGKeyArray) -> Params:
            return student.init(key, jnp.zeros((1, self.dim), jnp.float32))["params"]

        def sample_batch(data: Data, key: PRNGKeyArray) -> Input:
            key_x, key_y = jax.random.split(key)
            first, second = constants
            x = jax.random.normal(key_x, (self.batch_size, self.dim)) * scale[None]
            logits = self.gain * (jax.nn.relu(x @ first) @ second)
            return x, jax.random.categorical(key_y, logits)

        def classify(params: Params, inputs: Array) -> Array:
            return cast(Array, student.apply({"params": params}, inputs))

        def loss(params: Params, batch: Input) -> Loss:
            inputs, labels = batch
            losses = optax.softmax_cross_entropy_with_integer_labels(
                classify(params, inputs), labels
            )
            return jnp.mean(losses)

        def error(params: Params, batch: Input) -> Loss:
            inputs, labels = batch
            return jnp.mean(jnp.argmax(classify(params, inputs), axis=-1) != labels)

        return Problem(init_params, sample_batch, loss, error=error)
