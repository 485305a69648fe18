"""Autoencoders and variational autoencoders."""

from dataclasses import dataclass
from typing import cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import override

from tasks import datasets
from tasks.base import Constants, Input, Loss, Params, Problem
from tasks.datasets import StoredSplit
from tasks.supervised.base import Activation, Supervised


class _Layers(nn.Module):
    widths: tuple[int, ...]
    activation: Activation

    @override
    @nn.compact
    def __call__(self, x: Float[Array, "n i"]) -> Float[Array, "n o"]:
        for i, width in enumerate(self.widths):
            x = getattr(nn, self.activation)(x) if i else x
            x = nn.Dense(width)(x)
        return x


class _Autoencoder(nn.Module):
    encoder: tuple[int, ...]
    decoder: tuple[int, ...]
    activation: Activation

    @override
    def setup(self):
        self.encode = _Layers(self.encoder, self.activation)
        self.decode = _Layers(self.decoder, self.activation)

    @override
    def __call__(self, x: Float[Array, "n ..."]) -> Float[Array, "n inputs"]:
        return self.decode(self.encode(x.reshape(len(x), -1)))


@dataclass(frozen=True)
class Autoencoder(Supervised):
    """MLP autoencoder trained with half the mean squared reconstruction error.

    Labels are ignored. The `l2` penalty is not added to the loss.
    """

    width: int = 64
    """Units in the hidden layers of the encoder and of the decoder."""
    num_latents: int = 8
    """Units in the bottleneck."""
    activation: Activation = "tanh"
    """Nonlinearity of the hidden layers."""

    @property
    def num_inputs(self) -> int:
        """Number of features per input: pixels times channels, or table columns."""
        size = 1
        for n in datasets.get(self.dataset).shape:
            size *= n
        return size

    @property
    @override
    def network(self) -> _Autoencoder:
        return _Autoencoder(
            (self.width, self.num_latents),
            (self.width, self.num_inputs),
            self.activation,
        )

    @override
    def loss(self, params: Params, batch: Input) -> Loss:
        restored = self.outputs(params, batch)
        return 0.5 * jnp.mean((restored - batch.inputs.reshape(restored.shape)) ** 2)

    @override
    def problem(self, constants: Constants) -> Problem:
        return super().problem(constants)._replace(error=None)


@dataclass(frozen=True)
class VariationalAutoencoder(Autoencoder):
    """Variational autoencoder trained with the negative ELBO per input feature.

    The decoder is Gaussian with unit variance and the prior is standard normal; the
    normalizing constant of the likelihood is omitted. One reparameterized sample per
    example is used. Its noise is drawn with the batch, which is a tuple
    ``(examples, noise)``. The loss is therefore a deterministic function of
    ``(params, batch)``.
    """

    @property
    @override
    def network(self) -> _Autoencoder:
        return _Autoencoder(
            (self.width, 2 * self.num_latents),
            (self.width, self.num_inputs),
            self.activation,
        )

    @override
    def init_params(self, key: PRNGKeyArray) -> Params:
        def both(network: _Autoencoder, x: Array) -> Array:
            return network.decode(network.encode(x)[:, : self.num_latents])

        return self.network.init(key, jnp.zeros((1, self.num_inputs)), method=both)

    @override
    def sample_batch(self, data: StoredSplit, key: PRNGKeyArray) -> Input:
        shape = (self.batch_size, self.num_latents)
        noise = jax.random.normal(jax.random.fold_in(key, 1), shape)
        return data.sample(self.batch_size, key), noise

    @override
    def loss(self, params: Params, batch: Input) -> Loss:
        examples, noise = batch
        x = examples.inputs.reshape(len(noise), -1)

        def bound(network: _Autoencoder) -> Array:
            mean, log_var = jnp.split(network.encode(x), 2, axis=-1)
            restored = network.decode(mean + jnp.exp(0.5 * log_var) * noise)
            lost = 0.5 * jnp.sum((restored - x) ** 2, axis=-1)
            divergence = 0.5 * (jnp.exp(log_var) + mean**2 - 1.0 - log_var).sum(-1)
            return jnp.mean(lost + divergence) / self.num_inputs

        return cast(Array, self.network.apply(params, method=bound))
