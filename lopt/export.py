"""A trained optimizer in one self-describing `.safetensors` file."""

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import safetensors
import safetensors.numpy

from lopt.base import LearnedOptimizer, NumSteps, Theta
from lopt.describe import from_dict, to_dict
from lopt.errors import UserError
from lopt.registry import OPTIMIZERS

FORMAT = 1
_HEADER = "lopt"


def save(
    path: str | Path,
    optimizer: LearnedOptimizer,
    theta: Theta,
    card: Mapping[str, Any] | None = None,
) -> None:
    """Writes `optimizer` with its `theta` to `path`, whole or not at all.

    Args:
        path: Where to write; a file already there is replaced.
        optimizer: The architecture and its hyperparameters.
        theta: The trained outer parameters.
        card: What a reader should know: tasks, horizons, outer steps, seed.
    """
    tensors = {name: np.asarray(leaf) for name, leaf in _named_leaves(theta)}
    described = to_dict(optimizer)
    header = {
        "format": FORMAT,
        "architecture": described.pop("type"),
        "hyperparameters": described,
        "card": dict(card or {}),
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("lopt", "jax", "flax", "optax")
        },
    }
    header["sha256"] = _checksum(header, tensors)
    # One entry: safetensors writes several in any order, and the file is reproducible.
    metadata = {_HEADER: json.dumps(header)}
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(safetensors.numpy.save(tensors, metadata))
    partial.replace(path)


def load(
    path: str | Path, num_steps: NumSteps
) -> optax.GradientTransformationExtraArgs:
    """Returns the optimizer in `path` as an optax transformation.

    Args:
        path: A file written by `save`, by `lopt meta-train` or by `lopt export`.
        num_steps: How many updates the run will take.
    """
    if isinstance(num_steps, int) and num_steps < 1:
        raise UserError(f"`num_steps` must be at least 1; got {num_steps}. Try 1000.")
    optimizer, theta = load_theta(path)
    return optimizer.as_optax(theta, num_steps)


def load_theta(path: str | Path) -> tuple[LearnedOptimizer, Theta]:
    """Returns the architecture in `path` and its trained outer parameters."""
    header, tensors = _read(Path(path))
    described = {"type": header["architecture"], **header["hyperparameters"]}
    try:
        optimizer = from_dict(described, OPTIMIZERS)
        template = jax.eval_shape(optimizer.init_theta, jax.random.key(0))
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: {error}") from error
    expected = dict(_named_leaves(template))
    shapes = {name: (leaf.shape, leaf.dtype) for name, leaf in expected.items()}
    if shapes != {name: (x.shape, x.dtype) for name, x in tensors.items()}:
        raise UserError(
            f"{path}: the tensors in it do not fit its architecture, "
            f"{optimizer}. Export it again from its run."
        )
    leaves = [jax.numpy.asarray(tensors[name]) for name in expected]
    return optimizer, jax.tree.unflatten(jax.tree.structure(template), leaves)


def read_card(path: str | Path) -> dict[str, Any]:
    """Returns what `path` says of itself: architecture, tasks, horizons, versions."""
    header, tensors = _read(Path(path))
    num_parameters = sum(int(x.size) for x in tensors.values())
    card = header.pop("card")
    return {**header, "num_parameters": num_parameters, **card}


def _named_leaves(theta: Any) -> list[tuple[str, Any]]:
    paths, _ = jax.tree_util.tree_flatten_with_path(theta)
    name = lambda path: jax.tree_util.keystr(path, simple=True, separator="/")
    return [(name(path) or "theta", leaf) for path, leaf in paths]


def _checksum(header: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()


def _read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    if not path.is_file():
        raise UserError(
            f"{path} must be a file written by `lopt export`; there is none. "
            "Try `lopt export RUN_DIR --out FILE`."
        )
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            header = _read_header(path, file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(
            f"{path} must be a whole safetensors file; it cannot be read ({error}). "
            "It may be truncated: copy or export it again."
        ) from error
    if header.pop("sha256", None) != _checksum(header, tensors):
        raise UserError(
            f"{path} is damaged: its content does not match its checksum. "
            "Copy or export it again."
        )
    return header, tensors


def _read_header(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Returns the header of a file that this version can read."""
    if _HEADER not in metadata:
        raise UserError(
            f"{path} is a safetensors file but not an optimizer of lopt: its header "
            "has no `lopt` entry. Try a file written by `lopt export`."
        )
    try:
        header = json.loads(metadata[_HEADER])
        version = int(header["format"])
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path} is damaged: its header cannot be read. Copy or export it again."
        ) from error
    # Before the checksum: a newer format may compute it otherwise.
    if version > FORMAT:
        raise UserError(
            f"{path} has format {version}; this version of lopt reads up to "
            f"{FORMAT}. Try `pip install --upgrade lopt`."
        )
    return header
