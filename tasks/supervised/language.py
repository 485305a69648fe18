"""Recurrent and transformer language models."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal, cast

import flax.linen as nn
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Integer, PRNGKeyArray
from typing_extensions import override

from tasks.base import Constants, Loss, Params, Problem, Split, Task
from tasks.datasets.base import draw_indices
from tasks.datasets.text import EMBEDDED, Unit, read_text, vocabulary_size
from tasks.ops.orthogonal import orthogonal


@dataclass(frozen=True)
class LanguageModel(Task):
    """Mean next-token cross-entropy over random subsequences of a text.

    A batch has shape ``(batch_size, length + 1)``: the inputs are all tokens but the
    last, the targets all tokens but the first.
    """

    text: str = EMBEDDED
    """Path of a text file in the data directory. `descriptions` needs no file."""
    unit: Unit = "letter"
    """Token type of the text."""
    length: int = 32
    """Number of predicted tokens per sequence."""
    batch_size: int = 16
    """Number of sequences per batch."""
    width: int = 32
    """Size of embeddings and hidden layers."""
    depth: int = 1
    """Number of layers."""

    def __post_init__(self):
        for name in ("length", "batch_size", "width", "depth"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"`{name}` must be at least 1; got {getattr(self, name)}. Try 1."
                )

    @property
    @abstractmethod
    def network(self) -> nn.Module:
        """Network that maps tokens to next-token logits."""

    @property
    def vocabulary(self) -> int:
        """Vocabulary size."""
        return vocabulary_size(self.text, self.unit)

    @override
    def load(self, split: Split = "train") -> Integer[Array, " tokens"]:
        tokens = read_text(self.text, self.unit, split)
        if len(tokens) <= self.length:
            raise ValueError(
                f"`length` must be below the {len(tokens)} tokens that {self.text} has "
                f"for {split}; got {self.length}. Try {len(tokens) // 2}."
            )
        return jnp.asarray(tokens)

    @override
    def init_params(self, key: PRNGKeyArray) -> Params:
        return self.network.init(key, jnp.zeros((1, self.length), jnp.int32))

    @override
    def sample_batch(
        self, data: Integer[Array, " tokens"], key: PRNGKeyArray
    ) -> Int[Array, "n stretch"]:
        last = data.size - self.length
        starts = draw_indices(key, (self.batch_size,), last)
        places = starts[:, None] + jnp.arange(self.length + 1)[None]
        return data[places].astype(jnp.int32)

    @override
    def loss(self, params: Params, batch: Int[Array, "n stretch"]) -> Loss:
        return optax.softmax_cross_entropy_with_integer_labels(
            self._logits(params, batch), batch[:, 1:]
        ).mean()

    def error(self, params: Params, batch: Int[Array, "n stretch"]) -> Loss:
        """Compute the share of tokens whose most likely prediction is wrong."""
        guess = self._logits(params, batch).argmax(axis=-1)
        return jnp.mean(guess != batch[:, 1:], dtype=jnp.float32)

    def _logits(self, params: Params, batch: Array) -> Float[Array, "n length v"]:
        return cast(Array, self.network.apply(params, batch[:, :-1]))

    @override
    def problem(self, constants: Constants) -> Problem:
        return super().problem(constants)._replace(error=self.error)


class _Recurrent(nn.Module):
    cell: Literal["lstm", "gru"]
    width: int
    depth: int
    vocabulary: int

    @override
    @nn.compact
    def __call__(self, tokens: Int[Array, "n length"]) -> Float[Array, "n length v"]:
        x = nn.Embed(self.vocabulary, self.width)(tokens)
        cell = {"lstm": nn.OptimizedLSTMCell, "gru": nn.GRUCell}[self.cell]
        for _ in range(self.depth):
            layer = cell(self.width, recurrent_kernel_init=orthogonal)
            x = cast(Array, nn.RNN(layer)(x))
        return nn.Dense(self.vocabulary)(x)


@dataclass(frozen=True)
class RecurrentLM(LanguageModel):
    """LSTM or GRU language model with a zero initial state for every sequence."""

    cell: Literal["lstm", "gru"] = "lstm"
    """Recurrent cell."""

    @property
    @override
    def network(self) -> _Recurrent:
        return _Recurrent(self.cell, self.width, self.depth, self.vocabulary)


class _Transformer(nn.Module):
    width: int
    depth: int
    num_heads: int
    vocabulary: int

    @override
    @nn.compact
    def __call__(self, tokens: Int[Array, "n length"]) -> Float[Array, "n length v"]:
        length = tokens.shape[1]
        init = nn.initializers.normal(0.02)
        places = self.param("places", init, (length, self.width))
        x = nn.Embed(self.vocabulary, self.width)(tokens) + places[None]
        mask = nn.make_causal_mask(tokens)
        for _ in range(self.depth):
            y = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(self.num_heads)(y, mask=mask)
            y = nn.Dense(4 * self.width)(nn.LayerNorm()(x))
            x = x + nn.Dense(self.width)(nn.gelu(y))
        return nn.Dense(self.vocabulary)(nn.LayerNorm()(x))


@dataclass(frozen=True)
class TransformerLM(LanguageModel):
    """Causal pre-norm transformer with learned positional embeddings."""

    num_heads: int = 2
    """Number of attention heads. Must divide `width`."""

    @override
    def __post_init__(self):
        super().__post_init__()
        if self.num_heads < 1 or self.width % self.num_heads:
            raise ValueError(
                "`num_heads` must divide `width`; got "
                f"num_heads={self.num_heads}, width={self.width}. Try num_heads=1."
            )

    @property
    @override
    def network(self) -> _Transformer:
        return _Transformer(self.width, self.depth, self.num_heads, self.vocabulary)
