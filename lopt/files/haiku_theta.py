"""Conversion of released weights, with Haiku's names, to `theta` of this package."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from lopt.optimizers.adafactor_mlp import AdafactorMLP
from lopt.optimizers.celo import Celo
from lopt.optimizers.celo2 import Celo2
from lopt.optimizers.celo_adam import CeloAdam
from lopt.optimizers.velo import VeLO

Weights: TypeAlias = dict[str, Any]
"""`theta` with NumPy arrays as leaves."""


class Tensors:
    """Tensors of a file, each of which is to be taken once."""

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        self._left = dict(arrays)

    def take(self, name: str, rank: int) -> np.ndarray:
        """Take a tensor; raise a `ValueError` if it is absent or of another rank."""
        if name not in self._left:
            raise ValueError(f"it has no tensor {name}")
        array = self._left.pop(name)
        if array.ndim != rank:
            raise ValueError(
                f"{name} must have rank {rank}; its shape is {array.shape}"
            )
        return array

    def has(self, name: str) -> bool:
        """Check whether a tensor has not been taken yet."""
        return name in self._left

    def check_taken(self) -> None:
        """Raise a `ValueError` if a tensor has not been taken."""
        if self._left:
            raise ValueError(f"it also has {', '.join(sorted(self._left)[:3])}")


def kind_of(arrays: Mapping[str, np.ndarray]) -> str | None:
    """Name the optimizers that have such tensors; `None` if there are none."""
    has_mlp = "ff_mod_stack/~/b0" in arrays
    first = arrays.get("rnn_params/linear/w")
    if first is None:
        is_adafactor = "nn/~/b0" in arrays
        return "Celo2" if has_mlp else "Adafactor-MLP" if is_adafactor else None
    if not has_mlp:
        return "Celo-Adam"
    # VeLO's LSTM has 12 inputs more, which are specific to the tensor.
    return {18: "Celo", 30: "VeLO"}.get(first.shape[0])


def adafactor_mlp(tensors: Tensors) -> tuple[AdafactorMLP, Weights]:
    """Convert an Adafactor-MLP."""
    first = tensors.take("nn/~/w0", 2)
    network = _mlp(tensors, "nn/~/", first)
    decays = {
        ours: tensors.take(f"{theirs}_decays", 1)
        for ours, theirs in (
            ("momenta", "momentum"),
            ("second_moment", "rms"),
            ("factored", "adafactor"),
        )
    }
    optimizer = AdafactorMLP(first.shape[-1], _depth(network), as_released=True)
    return optimizer, {"network": network, "decays": decays}


def celo2(tensors: Tensors) -> tuple[Celo2, Weights]:
    """Convert Celo2."""
    theta = _extended_mlp(tensors, rank=2)
    width = theta["params"]["bias_0"].shape[-1]
    return Celo2(width, _depth(theta)), theta


def celo2_base(tensors: Tensors) -> tuple[Celo2, Weights]:
    """Convert Celo2-base, whose file is like that of Celo2."""
    optimizer, theta = celo2(tensors)
    base = dataclasses.replace(optimizer, orthogonalize=False, adam_vectors=False)
    return base, theta


def celo(tensors: Tensors) -> tuple[Celo, Weights]:
    """Convert Celo."""
    sizes, theta = _lstm_and_banks(tensors)
    return Celo(*sizes), theta


def celo_adam(tensors: Tensors) -> tuple[CeloAdam, Weights]:
    """Convert Celo-Adam."""
    network = _lstm(tensors)
    width = network["params"]["initial"].shape[-1]
    return CeloAdam(width), {"network": network}


def velo(tensors: Tensors) -> tuple[VeLO, Weights]:
    """Convert VeLO, with the mean over banks as the mixture."""
    sizes, theta = _lstm_and_banks(tensors)
    return VeLO(*sizes), theta


def velo_4000(tensors: Tensors) -> tuple[VeLO, Weights]:
    """Convert the trained VeLO, whose mixture is 100 times the mean over banks."""
    optimizer, theta = velo(tensors)
    return dataclasses.replace(optimizer, mixture_scale=100.0), theta


def _lstm_and_banks(tensors: Tensors) -> tuple[tuple[int, int, int, int], Weights]:
    """Convert the LSTM and the banks; also find the sizes of the architecture."""
    network, banks = _lstm(tensors), _extended_mlp(tensors, rank=3)
    num_banks, width = banks["params"]["bias_0"].shape
    lstm_width = network["params"]["initial"].shape[-1]
    sizes = lstm_width, num_banks, width, _depth(banks)
    return sizes, {"banks": banks, "network": network}


def _extended_mlp(tensors: Tensors, rank: int) -> Weights:
    """Convert an MLP whose first kernel is split by groups of inputs."""
    # Group 7 are the gradients over factored roots, 8 is the gradient over the root.
    order = (0, 1, 2, 3, 4, 5, 6, 8, 7, 9, 10, 11, 12, 13)
    groups = [tensors.take(f"ff_mod_stack/~/w0__{i}", rank) for i in order]
    return _mlp(tensors, "ff_mod_stack/~/", np.concatenate(groups, axis=-2))


def _mlp(tensors: Tensors, prefix: str, first: np.ndarray) -> Weights:
    weights, i = {"kernel_0": first}, 0
    while i == 0 or tensors.has(f"{prefix}b{i}"):
        if i:
            weights[f"kernel_{i}"] = tensors.take(f"{prefix}w{i}", first.ndim)
        weights[f"bias_{i}"] = tensors.take(f"{prefix}b{i}", first.ndim - 1)
        i += 1
    return {"params": weights}


def _depth(theta: Weights) -> int:
    return len(theta["params"]) // 2 - 1


def _lstm(tensors: Tensors) -> Weights:
    """Convert the LSTM, and the layers before and after it."""

    def dense(name):
        names = {"kernel": ("w", 2), "bias": ("b", 1)}
        return {
            ours: tensors.take(f"rnn_params/{name}/{theirs}", rank)
            for ours, (theirs, rank) in names.items()
        }

    # The second of the three layers before the LSTM replaces the result of the first.
    layers = {"unused": "linear", "largest": "linear_1", "own": "linear_2"}
    network: Weights = {ours: dense(theirs) for ours, theirs in layers.items()}
    network["step_size"] = dense("step_size")
    if tensors.has("rnn_params/rnn_to_controls/w"):
        network["controls"] = dense("rnn_to_controls")
    start = [tensors.take(f"lstm_init_state/{k}", 2) for k in ("hidden", "cell")]
    network["initial"] = np.concatenate(start)
    width = network["initial"].shape[-1]
    gates, cell = dense("rnn/linear"), {}
    kernels = np.split(gates["kernel"], 4, axis=1)
    for gate, kernel, bias in zip(
        "igfo", kernels, np.split(gates["bias"], 4), strict=True
    ):
        # Haiku adds one to the forget gate.
        bias = bias + np.float32(gate == "f")
        cell[f"i{gate}"] = {"kernel": kernel[:width]}
        cell[f"h{gate}"] = {"kernel": kernel[width:], "bias": bias}
    return {"params": {**network, "lstm": cell}}
