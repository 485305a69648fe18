"""Character-level LSTM whose weights are the outer parameters."""

from dataclasses import dataclass
from typing import Literal, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Float, Int, PRNGKeyArray
from typing_extensions import override

from tasks.base import Horizon, Loss, State, Theta, UnrolledSystem
from tasks.datasets.text import Unit, read_text, vocabulary_size


class _Cell(nn.Module):
    width: int
    vocabulary: int

    @override
    @nn.compact
    def __call__(self, carry, token: Int[Array, ""]):
        embedded = nn.Embed(self.vocabulary, self.width)(token)
        carry, output = nn.OptimizedLSTMCell(self.width)(carry, embedded)
        return carry, nn.Dense(self.vocabulary)(output)


class CharacterState(struct.PyTreeNode):
    """State of a `CharacterLSTM` episode.

    Attributes:
        carry: LSTM cell and hidden states, each of shape ``(width,)``.
        position: Index of the next input character in the text.
    """

    carry: tuple[Float[Array, "..."], Float[Array, "..."]]
    position: Int[Array, "..."]


@dataclass(frozen=True)
class CharacterLSTM(UnrolledSystem):
    """Next-character cross-entropy of an LSTM that reads a text one character a step.

    The outer parameters `theta` are the weights of the network.
    """

    width: int = 5
    """Number of hidden units and size of the embedding."""
    random_start: bool = True
    """Start each episode at a random position, instead of the beginning of the text."""
    text: str = "descriptions"
    """Path of a text file in the data directory. `descriptions` needs no file."""
    unit: Unit = "letter"
    """Token type of the text."""
    sequence: Literal["text", "random", "repeated"] = "text"
    """Sequence to read: the text, as many tokens of its vocabulary drawn uniformly, or
    its first token repeated."""

    def __post_init__(self):
        if self.width < 1:
            raise ValueError(f"`width` must be at least 1; got {self.width}. Try 5.")

    @override
    def load(self) -> Int[Array, " characters"]:
        text = jnp.asarray(read_text(self.text, self.unit, "train"), jnp.int32)
        if self.sequence == "repeated":
            return jnp.full_like(text, text[0])
        if self.sequence == "random":
            most = vocabulary_size(self.text, self.unit)
            return jax.random.randint(jax.random.key(0), text.shape, 0, most)
        return text

    @override
    def init_theta(self, key: PRNGKeyArray) -> Theta:
        return self._cell.init(key, self._blank(), jnp.zeros((), jnp.int32))

    @override
    def init_state(
        self,
        theta: Theta,
        data: Int[Array, " characters"],
        horizon: Horizon,
        key: PRNGKeyArray,
    ) -> CharacterState:
        position = jax.random.randint(key, (), 0, data.size)
        if not self.random_start:
            position = jnp.zeros_like(position)
        return CharacterState(carry=self._blank(), position=position)

    @override
    def sample_input(
        self, data: Int[Array, " characters"], state: CharacterState, key: PRNGKeyArray
    ) -> tuple[Int[Array, ""], Int[Array, ""]]:
        """Look up the input character at the current position and its successor."""
        return data[state.position], data[(state.position + 1) % data.size]

    @override
    def step(
        self,
        theta: Theta,
        state: CharacterState,
        x: tuple[Int[Array, ""], Int[Array, ""]],
    ) -> tuple[CharacterState, Loss]:
        token, target = x
        carry, logits = cast(
            tuple[State, Array], self._cell.apply(theta, state.carry, token)
        )
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, target)
        return CharacterState(carry, state.position + 1), loss

    @property
    def _cell(self) -> _Cell:
        return _Cell(self.width, vocabulary_size(self.text, self.unit))

    def _blank(self) -> tuple[Float[Array, " width"], Float[Array, " width"]]:
        zeros = jnp.zeros(self.width, jnp.float32)
        return zeros, zeros
