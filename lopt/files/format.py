"""Self-describing `.safetensors` files of trained optimizers."""

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from jaxtyping import PyTree

from lopt.base import LearnedOptimizer, Theta
from lopt.errors import UserError, one_line
from lopt.files.atomic import write_atomically
from lopt.files.bounded import check_regular
from lopt.files.dataclass_json import from_dict, to_dict
from lopt.files.json_file import LARGEST, parse_object
from lopt.pretrained import resolve
from lopt.registry import OPTIMIZERS

FORMAT = 1
_HEADER = "lopt"
_ENTRIES = {"architecture": str, "hyperparameters": dict, "card": dict}
_LARGEST_SIZE = 100
_LARGEST_FILE = 2**28  # bytes
_MOST_TENSORS = 1_000


def save(
    path: str | Path,
    optimizer: LearnedOptimizer,
    theta: Theta,
    card: Mapping[str, Any] | None = None,
) -> None:
    """Write `optimizer` and `theta` to `path` atomically.

    Args:
        path: Output file; an existing file is replaced.
        optimizer: Architecture with its hyperparameters.
        theta: Trained outer parameters.
        card: Metadata with JSON values, such as tasks, horizons, outer steps and seed.

    Raises:
        UserError: If `theta` does not match `optimizer` or is not finite, or if `card`
            is not valid JSON.
    """
    path = Path(path)
    tensors = {n: np.array(leaf, order="C") for n, leaf in named_leaves(theta)}
    try:
        _check_theta(optimizer, tensors)
        text = json.dumps(dict(card or {}), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"{path} cannot be written: {one_line(error)}") from error
    described = to_dict(optimizer)
    header = {
        "format": FORMAT,
        "architecture": described.pop("type"),
        "hyperparameters": described,
        # A JSON round trip, so that the checksum covers the card as it is read back.
        "card": json.loads(text),
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("lopt", "jax", "flax", "optax")
        },
    }
    header["sha256"] = _checksum(header, tensors)
    # A single metadata entry keeps the file reproducible: safetensors writes several in
    # arbitrary order.
    metadata = {_HEADER: json.dumps(header)}
    write_atomically(path, safetensors.numpy.save(tensors, metadata))


def load_theta(path: str | Path) -> tuple[LearnedOptimizer, Theta]:
    """Load the architecture and the trained outer parameters."""
    return make_optimizer(path, *read_file(resolve(path)))


def read_card(path: str | Path) -> dict[str, Any]:
    """Read the card, the header entries and `num_parameters` as one dictionary.

    Header entries are the architecture, hyperparameters, versions, format and checksum.
    """
    header, tensors = read_file(resolve(path))
    num_parameters = sum(int(x.size) for x in tensors.values())
    card = header.pop("card")
    return {**card, **header, "num_parameters": num_parameters}


def named_leaves(theta: Any) -> list[tuple[str, Any]]:
    """List the leaves of `theta` with the names that they have in a file."""
    paths, _ = jax.tree_util.tree_flatten_with_path(theta)

    def name(path):
        return jax.tree_util.keystr(path, simple=True, separator="/")

    return [(name(path) or "theta", leaf) for path, leaf in paths]


def _checksum(header: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()


def read_file(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read the header and the tensors of a file, and verify its checksum."""
    if not path.is_file():
        raise UserError(
            f"{path} must be a file written by `lopt export`; there is none. "
            "Try `lopt export RUN_DIR --out FILE`."
        )
    try:
        _check_bounds(path)
        # `safe_open` rejects sizes beyond the end of the file before it allocates.
        with safetensors.safe_open(path, framework="numpy") as file:
            header = _read_header(path, file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        unsigned = {name: entry for name, entry in header.items() if name != "sha256"}
        is_whole = header.get("sha256") == _checksum(unsigned, tensors)
    except UserError:
        raise
    # A damaged file may raise any exception: AttributeError for dtypes and ValueError
    # for shapes that NumPy does not support, RecursionError for deeply nested headers.
    except Exception as error:
        raise UserError(
            f"{path} must be a whole safetensors file; it cannot be read "
            f"({one_line(error)}). It may be truncated: copy or export it again."
        ) from error
    if not is_whole:
        raise UserError(
            f"{path} is damaged: its content does not match its checksum. "
            "Copy or export it again."
        )
    for name, kind in _ENTRIES.items():
        if not isinstance(header.get(name), kind):
            raise UserError(
                f"{path}: `{name}` in its header must be a {kind.__name__}; got "
                f"{one_line(repr(header.get(name)))}. Export it again from its run."
            )
    return header, tensors


def _check_bounds(path: Path) -> None:
    """Validate the sizes of a file and of its header, before it is parsed.

    Raises:
        ValueError: If one is too large.
    """
    check_regular(path, _LARGEST_FILE)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        num_tensors = 0 if length > LARGEST else file.read(length).count(b'"dtype"')
    if length > LARGEST or num_tensors > _MOST_TENSORS:
        raise ValueError(
            f"its header must have at most {LARGEST:,} bytes and {_MOST_TENSORS} "
            f"tensors; got {length:,} and {num_tensors}"
        )


def _read_header(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Parse the `lopt` metadata entry and validate its format version."""
    if _HEADER not in metadata:
        raise UserError(
            f"{path} is a safetensors file but not an optimizer of lopt: its header "
            "has no `lopt` entry. Try a file written by `lopt export`."
        )
    try:
        header = parse_object(metadata[_HEADER])
        version = header["format"]
        if type(version) is not int or version < 1:
            raise TypeError(f"format {version!r}")
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path} is damaged: its header cannot be read. Copy or export it again."
        ) from error
    # Precedes the checksum, which a newer format may compute differently.
    if version > FORMAT:
        raise UserError(
            f"{path} has format {one_line(version)}; this version of lopt reads up to "
            f"{FORMAT}. Try `pip install --upgrade lopt`."
        )
    return header


def make_optimizer(
    path: str | Path, header: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
) -> tuple[LearnedOptimizer, Theta]:
    """Create the optimizer described by a header, and its `theta`."""
    described = {**header["hyperparameters"], "type": header["architecture"]}
    try:
        optimizer = from_dict(described, OPTIMIZERS)
        template = _check_theta(optimizer, tensors)
    # Hyperparameters from a file may raise any exception in any optimizer.
    except Exception as error:
        raise UserError(f"{path}: {one_line(error)}") from error
    leaves = [jnp.asarray(tensors[name]) for name, _ in named_leaves(template)]
    return optimizer, jax.tree.unflatten(jax.tree.structure(template), leaves)


def _check_theta(
    optimizer: LearnedOptimizer, tensors: Mapping[str, np.ndarray]
) -> PyTree[jax.ShapeDtypeStruct]:
    """Validate `tensors` as outer parameters of `optimizer`.

    Returns:
        The shapes and dtypes of `theta`, as a pytree of `jax.ShapeDtypeStruct`.

    Raises:
        UserError: If names, shapes or dtypes do not match, or a value is not finite.
    """
    # Dimensions of empty tensors are free of charge, and bound nothing.
    sizes = [n for tensor in tensors.values() for n in tensor.shape if tensor.size]
    most = max(_LARGEST_SIZE, len(tensors))
    _check_sizes(optimizer, most, max([most, *sizes]))
    template = _template(optimizer)
    found = {name: (x.shape, x.dtype) for name, x in tensors.items()}
    if found != {n: (x.shape, x.dtype) for n, x in named_leaves(template)}:
        raise UserError(
            f"the tensors in it do not fit its architecture, {optimizer}. "
            "Export it again from its run."
        )
    for name, tensor in tensors.items():
        if not np.isfinite(tensor).all():
            raise UserError(
                f"theta must be finite, and {name} is not: the run that it comes from "
                "has diverged. Try a smaller outer learning rate."
            )
    return template


def _check_sizes(optimizer: Any, most: int, largest: int) -> None:
    """Raise if a hyperparameter implies a larger `theta` than the file contains.

    A small file may specify a network of a billion layers, and tracing its `init_theta`
    would take hours. Nested dataclasses are checked recursively.

    Args:
        optimizer: Dataclass whose fields are checked.
        most: Upper bound on integers that determine the number of tensors.
        largest: Upper bound on integers that determine their shapes.
    """
    values = {
        field.name: getattr(optimizer, field.name)
        for field in dataclasses.fields(optimizer)
    }
    large = []
    for name, value in values.items():
        if dataclasses.is_dataclass(value):
            _check_sizes(value, most, largest)
        numbers = (len(value), *value) if isinstance(value, tuple) else (value,)
        if any(isinstance(number, int) and number > most for number in numbers):
            large.append(name)
    small = {n: () if isinstance(values[n], tuple) else 1 for n in large}
    for name in large:

        def make(**changed):
            return dataclasses.replace(optimizer, **small | changed)

        # Integers that do not affect the shapes of `theta` are unbounded.
        if isinstance(values[name], tuple):
            bound = most
        else:
            one, two = (_template(make(**{name: n})) for n in (1, 2))
            is_depth = jax.tree.structure(one) != jax.tree.structure(two)
            bound = most if is_depth else math.inf if one == two else largest
        if isinstance(values[name], tuple) or values[name] > bound:
            raise UserError(
                f"`{name}` must be at most {bound}: it has no more tensors, and no "
                f"larger ones; got {one_line(values[name])}. Export it again from its "
                "run."
            )


@functools.lru_cache(maxsize=64)
def _template(optimizer: LearnedOptimizer) -> PyTree[jax.ShapeDtypeStruct]:
    return jax.eval_shape(optimizer.init_theta, jax.random.key(0))
