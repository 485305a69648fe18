"""Convolutional networks and residual ones on images."""

import functools
from dataclasses import dataclass

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float
from typing_extensions import override

from tasks import datasets
from tasks.convolve import convolve
from tasks.supervised import Activation, Supervised

_conv = functools.partial(nn.Conv, conv_general_dilated=convolve)


@dataclass(frozen=True)
class _OnImages(Supervised):
    """Refuses tables."""

    @override
    def __post_init__(self):
        super().__post_init__()
        shape = datasets.get(self.dataset).shape
        if len(shape) != 3:
            raise ValueError(
                f"`dataset` must have images for a convolution; {self.dataset} has "
                f"inputs of shape {shape}. Try digits."
            )


class _Convolutions(nn.Module):
    widths: tuple[int, ...]
    num_outputs: int
    activation: Activation

    @override
    @nn.compact
    def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n outputs"]:
        for i, width in enumerate(self.widths):
            x = _conv(width, (3, 3), strides=2 if i else 1)(x)
            x = getattr(nn, self.activation)(x)
        return nn.Dense(self.num_outputs)(x.mean(axis=(1, 2)))


@dataclass(frozen=True)
class ConvNet(_OnImages):
    """3 x 3 convolutions, strided from the second on, and a mean over the image."""

    width: int = 32
    """Channels."""
    depth: int = 3
    """Convolutions."""
    activation: Activation = "relu"
    """Nonlinearity after each."""

    @property
    @override
    def network(self) -> _Convolutions:
        widths = (self.width,) * self.depth
        return _Convolutions(widths, self.num_outputs, self.activation)


class _Block(nn.Module):
    """Two normalised convolutions beside a shortcut."""

    width: int
    stride: int
    num_groups: int

    @override
    @nn.compact
    def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n h2 w2 c2"]:
        y = _normalised_conv(x, self.width, self.num_groups, self.stride)
        y = _normalised_conv(nn.relu(y), self.width, self.num_groups)
        if y.shape != x.shape:
            x = _conv(self.width, (1, 1), self.stride, use_bias=False)(x)
        return nn.relu(x + y)


def _normalised_conv(x: Array, width: int, num_groups: int, stride: int = 1) -> Array:
    x = _conv(width, (3, 3), stride, use_bias=False)(x)
    return nn.GroupNorm(num_groups)(x)


class _ResNet(nn.Module):
    widths: tuple[int, ...]
    num_outputs: int
    num_groups: int

    @override
    @nn.compact
    def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n outputs"]:
        x = nn.relu(_normalised_conv(x, self.widths[0], self.num_groups))
        for i, width in enumerate(self.widths):
            x = _Block(width, 2 if i else 1, self.num_groups)(x)
        return nn.Dense(self.num_outputs)(x.mean(axis=(1, 2)))


@dataclass(frozen=True)
class _Residual(_OnImages):
    """Networks with group norm."""

    width: int = 16
    """Channels of the first layer; they double from stage to stage."""
    num_groups: int = 4
    """Groups that channels are normalised in."""

    @override
    def __post_init__(self):
        super().__post_init__()
        if self.num_groups < 1 or self.width % self.num_groups:
            raise ValueError(
                "`num_groups` must divide `width`; got "
                f"num_groups={self.num_groups}, width={self.width}. Try num_groups=1."
            )


@dataclass(frozen=True)
class ResNet(_Residual):
    """Residual blocks with group norm, twice as wide and half as large each time."""

    depth: int = 3
    """Residual blocks."""

    @property
    @override
    def network(self) -> _ResNet:
        widths = tuple(self.width * 2**i for i in range(self.depth))
        return _ResNet(widths, self.num_outputs, self.num_groups)


class _Myrtle(nn.Module):
    widths: tuple[int, ...]
    num_outputs: int
    num_groups: int

    @override
    @nn.compact
    def __call__(self, x: Float[Array, "n h w c"]) -> Float[Array, "n outputs"]:
        x = nn.relu(_normalised_conv(x, self.widths[0], self.num_groups))
        for i, width in enumerate(self.widths[1:]):
            x = nn.relu(_normalised_conv(x, width, self.num_groups))
            x = nn.max_pool(x, (2, 2), (2, 2))
            if i != 1:  # the first and the last layer have a residual block
                y = nn.relu(_normalised_conv(x, width, self.num_groups))
                x = x + nn.relu(_normalised_conv(y, width, self.num_groups))
        x = jnp.max(x, axis=(1, 2))
        return 0.125 * nn.Dense(self.num_outputs, use_bias=False)(x)


@dataclass(frozen=True)
class MyrtleResNet(_Residual):
    """The nine layers that Myrtle.ai trained on CIFAR-10 in a minute or two.

    With group norm in place of batch norm, which has a state that inner training
    would have to carry; 1.6 million parameters at the default width.
    """

    dataset: str = "cifar10"
    """A dataset of images."""
    width: int = 32
    """Channels of the first layer; they double three times."""
    num_groups: int = 8
    """Groups that channels are normalised in."""

    @property
    @override
    def network(self) -> _Myrtle:
        widths = tuple(self.width * 2**i for i in range(4))
        return _Myrtle(widths, self.num_outputs, self.num_groups)
