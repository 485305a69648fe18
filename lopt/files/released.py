"""Import of optimizers that other projects have released.

The files are those of google/learned_optimization and of amoudgl/celo. Their names of
tensors, such as ``ff_mod_stack/~/w0__3``, are Haiku's.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lopt.base import LearnedOptimizer, Theta
from lopt.errors import UserError, lookup, one_line
from lopt.files.dataclass_json import from_dict, to_dict
from lopt.files.format import check_theta, named_leaves, save
from lopt.files.msgpack_arrays import read_arrays
from lopt.optimizers.adafactor_mlp import AdafactorMLP
from lopt.optimizers.celo import Celo
from lopt.optimizers.celo2 import Celo2
from lopt.optimizers.celo_adam import CeloAdam
from lopt.optimizers.velo import VeLO

_CELO = "https://github.com/amoudgl/celo"
_GOOGLE = "https://github.com/google/learned_optimization"
_MIT, _APACHE = "MIT (amoudgl/celo)", "Apache-2.0 (google/learned_optimization)"
_READS_RUN = (
    "num_steps is the length of the run to be trained: the optimizer reads the "
    "fraction of it that has passed, and averages of the loss over up to that many "
    "steps"
)
_READS_STEP = (
    "num_steps is the length of the run to be trained: the optimizer reads the number "
    "of the step, which stops at num_steps"
)
_READS_NOTHING = "num_steps is not used: the optimizer does not read time or progress"


class _Tensors:
    """Tensors of a file, each of which is to be taken once."""

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        self._left = dict(arrays)

    def take(self, name: str, rank: int) -> np.ndarray:
        if name not in self._left:
            raise ValueError(f"it has no tensor {name}")
        array = self._left.pop(name)
        if array.ndim != rank:
            raise ValueError(
                f"{name} must have rank {rank}; its shape is {array.shape}"
            )
        return array

    def has(self, name: str) -> bool:
        return name in self._left

    def check_taken(self) -> None:
        if self._left:
            raise ValueError(f"it also has {', '.join(sorted(self._left)[:3])}")


Conversion = Callable[[_Tensors], tuple[LearnedOptimizer, Theta]]


@dataclass(frozen=True)
class Format:
    """Format of released files.

    Attributes:
        kind: Kind of files, as from `_kind`.
        convert: Function from the tensors to an optimizer and its `theta`.
        sources: Projects that write it.
        licenses: Licenses of these projects.
        horizon: Meaning of `num_steps`, for the card.
    """

    kind: str
    convert: Conversion
    sources: tuple[str, ...]
    licenses: tuple[str, ...]
    horizon: str


def import_theta(
    name: str,
    path: str | Path,
    out: str | Path | None = None,
    *,
    horizons: Sequence[int] | None = None,
    **fields: Any,
) -> tuple[LearnedOptimizer, Theta]:
    """Import an optimizer that another project has released.

    Args:
        name: Name of a format in `FORMATS`, such as ``celo``.
        path: Msgpack file that Flax wrote, such as ``theta.state``.
        out: File to write, for `lopt.load`; an existing file is replaced.
        horizons: Shortest and longest horizon of meta-training, which the file does not
            contain. If given, `lopt.load` warns of others.
        **fields: Hyperparameters of the architecture that are not determined by the
            file, such as `learning_rate` of `Celo2`.

    Returns:
        The optimizer and its outer parameters, as from `lopt.load_theta`.

    Raises:
        UserError: If the format or a field is unknown, or the file cannot be read or
            has another format.
    """
    found = lookup("format", name.replace("_", "-"), FORMATS)
    arrays = _without_checkpoint(read_arrays(path))
    kind = _kind(arrays)
    if kind != found.kind:
        others = [each for each, format_ in FORMATS.items() if format_.kind == kind]
        hint = f"Try `lopt import {others[0]}`." if others else "Try another file."
        raise UserError(
            f"{path} must be a file of {found.kind} for the format {name}; its tensors "
            f"are those of {kind or 'no known optimizer'}. {hint}"
        )
    try:
        tensors = _Tensors(arrays)
        optimizer, theta = found.convert(tensors)
        tensors.check_taken()
        check_theta(optimizer, {n: np.asarray(x) for n, x in named_leaves(theta)})
    except (ValueError, IndexError) as error:  # `UserError` is a `ValueError`
        raise UserError(
            f"{path} must have the tensors of {found.kind}; {one_line(error)}."
        ) from error
    optimizer = _with_fields(optimizer, fields)
    theta = jax.tree.map(jnp.asarray, theta)
    if out is not None:
        save(out, optimizer, theta, _card(found, name, Path(path), horizons))
    return optimizer, theta


def _card(
    found: Format, name: str, path: Path, horizons: Sequence[int] | None
) -> dict[str, Any]:
    card: dict[str, Any] = {
        "source": " or ".join(found.sources),
        "imported_format": name,
        "imported_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "license": " and ".join(found.licenses),
        "horizon": found.horizon,
    }
    if horizons is None:
        card["horizon"] += "; the file does not tell the horizons of meta-training"
        return card
    if len(horizons) != 2 or not 1 <= horizons[0] <= horizons[1]:
        raise UserError(
            "`horizons` must be the shortest and the longest horizon of meta-training; "
            f"got {tuple(horizons)}. Try (100, 2000)."
        )
    return {**card, "horizons": [int(x) for x in horizons]}


def _with_fields(
    optimizer: LearnedOptimizer, fields: Mapping[str, Any]
) -> LearnedOptimizer:
    """Replace fields, except those that determine the shapes of `theta`."""
    described = to_dict(optimizer)
    free = {k for k in described if k not in (*_DETERMINED, "type")}
    if unknown := sorted(set(fields) - free):
        raise UserError(
            f"a field must be one of {', '.join(sorted(free))} for "
            f"{described['type']}; got {', '.join(unknown)}. Try another format."
        )
    known = {type(optimizer).__name__: type(optimizer)}
    return from_dict({**described, **fields}, known)


_DETERMINED = ("width", "depth", "lstm_width", "num_banks", "as_released")


def _without_checkpoint(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Remove the prefix of checkpoints, which have `theta` as one of their fields."""
    prefixes = [
        prefix
        for prefix in ("params/", "0/")
        if all(name.startswith(prefix) for name in arrays)
    ]
    prefix = prefixes[0] if prefixes else ""
    return {name.removeprefix(prefix): array for name, array in arrays.items()}


def _kind(arrays: Mapping[str, np.ndarray]) -> str | None:
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


def _adafactor_mlp(tensors: _Tensors) -> tuple[LearnedOptimizer, Theta]:
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


def _celo2(tensors: _Tensors) -> tuple[LearnedOptimizer, Theta]:
    theta = _extended_mlp(tensors, rank=2)
    width = theta["params"]["bias_0"].shape[-1]
    return Celo2(width, _depth(theta)), theta


def _celo2_base(tensors: _Tensors) -> tuple[LearnedOptimizer, Theta]:
    optimizer, theta = _celo2(tensors)
    fields = {"orthogonalize": False, "adam_vectors": False}
    return _with_fields(optimizer, fields), theta


def _celo(tensors: _Tensors) -> tuple[LearnedOptimizer, Theta]:
    sizes, theta = _lstm_and_banks(tensors)
    return Celo(*sizes), theta


def _celo_adam(tensors: _Tensors) -> tuple[LearnedOptimizer, Theta]:
    network = _lstm(tensors)
    width = network["params"]["initial"].shape[-1]
    return CeloAdam(width), {"network": network}


def _velo(tensors: _Tensors) -> tuple[LearnedOptimizer, Theta]:
    sizes, theta = _lstm_and_banks(tensors)
    return VeLO(*sizes), theta


def _velo_4000(tensors: _Tensors) -> tuple[LearnedOptimizer, Theta]:
    optimizer, theta = _velo(tensors)
    return _with_fields(optimizer, {"mixture_scale": 100.0}), theta


def _lstm_and_banks(tensors: _Tensors) -> tuple[tuple[int, int, int, int], Theta]:
    """Convert the LSTM and the banks; also find the sizes of the architecture."""
    network, banks = _lstm(tensors), _extended_mlp(tensors, rank=3)
    num_banks, width = banks["params"]["bias_0"].shape
    lstm_width = network["params"]["initial"].shape[-1]
    sizes = lstm_width, num_banks, width, _depth(banks)
    return sizes, {"banks": banks, "network": network}


def _extended_mlp(tensors: _Tensors, rank: int) -> Theta:
    """Convert an MLP whose first kernel is split by groups of inputs."""
    # Group 7 are the gradients over factored roots, 8 is the gradient over the root.
    order = (0, 1, 2, 3, 4, 5, 6, 8, 7, 9, 10, 11, 12, 13)
    groups = [tensors.take(f"ff_mod_stack/~/w0__{i}", rank) for i in order]
    return _mlp(tensors, "ff_mod_stack/~/", np.concatenate(groups, axis=-2))


def _mlp(tensors: _Tensors, prefix: str, first: np.ndarray) -> Theta:
    weights, i = {"kernel_0": first}, 0
    while i == 0 or tensors.has(f"{prefix}b{i}"):
        if i:
            weights[f"kernel_{i}"] = tensors.take(f"{prefix}w{i}", first.ndim)
        weights[f"bias_{i}"] = tensors.take(f"{prefix}b{i}", first.ndim - 1)
        i += 1
    return {"params": weights}


def _depth(theta: Theta) -> int:
    return len(theta["params"]) // 2 - 1


def _lstm(tensors: _Tensors) -> Theta:
    """Convert the LSTM, and the layers before and after it."""

    def dense(name):
        names = {"kernel": ("w", 2), "bias": ("b", 1)}
        return {
            ours: tensors.take(f"rnn_params/{name}/{theirs}", rank)
            for ours, (theirs, rank) in names.items()
        }

    # The second of the three layers before the LSTM replaces the result of the first.
    layers = {"unused": "linear", "largest": "linear_1", "own": "linear_2"}
    network = {ours: dense(theirs) for ours, theirs in layers.items()}
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


_BOTH = (_GOOGLE, _CELO), (_APACHE, _MIT)
_FROM_CELO = (_CELO,), (_MIT,)
FORMATS = {
    "celo": Format("Celo", _celo, *_FROM_CELO, _READS_RUN),
    "celo-adam": Format("Celo-Adam", _celo_adam, *_FROM_CELO, _READS_RUN),
    "celo2": Format("Celo2", _celo2, *_FROM_CELO, _READS_NOTHING),
    "celo2-base": Format("Celo2", _celo2_base, *_FROM_CELO, _READS_NOTHING),
    "velo": Format("VeLO", _velo, *_FROM_CELO, _READS_RUN),
    "velo-4000": Format("VeLO", _velo_4000, *_BOTH, _READS_RUN),
    "adafac-mlp": Format("Adafactor-MLP", _adafactor_mlp, *_BOTH, _READS_STEP),
    "small-fc-lopt": Format("Adafactor-MLP", _adafactor_mlp, *_BOTH, _READS_STEP),
}
"""Formats of released files by name. `velo` and `velo-4000` differ in
`VeLO.mixture_scale`, which a file does not contain."""
