"""Convolutional and residual networks for image classification."""

import functools
from dataclasses import dataclass

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float
from typing_extensions import override

from tasks import datasets
from tasks.ops.conv2d import conv2d
from tasks.supervised.base import Activation, Supervised

_conv = functools.partial(nn.Conv, conv_general_dilated=conv2d)


@dataclass(frozen=True)
class _OnImages(Supervised):
    """Base of tasks with image inputs; raises for datasets of tables."""

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
    """Plain convolutional network.

    3 x 3 convolutions, with stride 2 from the second on, followed by global average
    pooling and a dense layer.
    """

    width: int = 32
    """Channels of each convolution."""
    depth: int = 3
    """Number of convolutions."""
    activation: Activation = "relu"
    """Nonlinearity after each convolution."""

    @property
    @override
    def network(self) -> _Convolutions:
        widths = (self.width,) * self.depth
        return _Convolutions(widths, self.num_outputs, self.activation)


class _Block(nn.Module):
    """Residual block: two 3 x 3 convolutions with group norm, and a shortcut.

    The shortcut is the identity, or a strided 1 x 1 convolution if the shape changes.
    """

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
    """Base of residual networks with group norm."""

    width: int = 16
    """Channels of the first layer, doubled at each further block."""
    num_groups: int = 4
    """Number of groups of the group norm. Must divide `width`."""

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
    """Residual network with group norm.

    Each block after the first doubles the channels and halves the resolution.
    """

    depth: int = 3
    """Number of residual blocks."""

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
            if i != 1:  # Only the first and the last layer have a residual block.
                y = nn.relu(_normalised_conv(x, width, self.num_groups))
                x = x + nn.relu(_normalised_conv(y, width, self.num_groups))
        x = jnp.max(x, axis=(1, 2))
        return 0.125 * nn.Dense(self.num_outputs, use_bias=False)(x)


@dataclass(frozen=True)
class MyrtleResNet(_Residual):
    """Myrtle.ai's nine-layer ResNet, with group norm in place of batch norm.

    The original trains on CIFAR-10 in a minute or two. Batch norm has running
    statistics, which inner training would have to carry as additional state. The
    network has 1.6 million parameters at the default width.
    """

    dataset: str = "cifar10"
    """Name of an image dataset (`lopt data list`)."""
    width: int = 32
    """Channels of the first layer, doubled three times."""
    num_groups: int = 8
    """Number of groups of the group norm. Must divide `width`."""

    @property
    @override
    def network(self) -> _Myrtle:
        widths = tuple(self.width * 2**i for i in range(4))
        return _Myrtle(widths, self.num_outputs, self.num_groups)
