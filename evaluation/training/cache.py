"""On-disk cache of evaluation results, keyed by a hash of all their inputs."""

import contextlib
import dataclasses
import hashlib
import io
import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from lopt.files.atomic import write_atomically
from lopt.files.bounded import read_bounded
from lopt.kernels import native
from lopt.source_hash import source_hash
from tasks.datasets import DATASETS, CsvTable
from tasks.prepared import find_file

_LARGEST = 2**28  # bytes of an entry
_DIGEST = 32
_OURS = ("lopt", "tasks", "meta_train", "evaluation")
_VERSIONS = ("lopt", "jax", "jaxlib", "flax", "optax")
Arrays = TypeVar("Arrays", bound=tuple)


class Cache:
    """Directory of files, one for each cached named tuple of arrays.

    A file is a SHA-256 hash of 32 bytes, followed by an `.npz` archive.
    """

    def __init__(self, folder: Path | None = None):
        """Initialize the cache.

        Args:
            folder: Directory of the cache, created on first write. With `None`,
                nothing is read or written.
        """
        self._folder = folder

    def get(self, name: str | None, kind: type[Arrays]) -> Arrays | None:
        """Load a cached named tuple.

        Args:
            name: Cache key from `name_of`.
            kind: Type of the named tuple; its fields name the arrays of the file.

        Returns:
            The named tuple, or `None` if it is missing or unreadable.
        """
        if self._folder is None or name is None:
            return None
        fields = kind._fields  # pyright: ignore[reportAttributeAccessIssue]
        try:
            entry = read_bounded(self._folder / f"{name}.cached", _LARGEST)
            digest, content = entry[:_DIGEST], entry[_DIGEST:]
            if hashlib.sha256(content).digest() != digest:
                return None
            arrays = np.load(io.BytesIO(content), allow_pickle=False)
            return kind(*(arrays[field] for field in fields))
        # Any unreadable entry is a miss: other versions may have written anything.
        except Exception:
            return None

    def put(self, name: str | None, arrays: Any) -> None:
        """Write a named tuple of arrays atomically.

        Nothing is written without a folder or if `name` is `None`.
        """
        if self._folder is None or name is None:
            return
        # A failed write is harmless: the result is computed again next time.
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            content = io.BytesIO()
            np.savez_compressed(content, **arrays._asdict())
            data = content.getvalue()
            digest = hashlib.sha256(data).digest()
            write_atomically(self._folder / f"{name}.cached", digest + data)


def name_of(*parts: Any) -> str | None:
    """Compute a cache key, or `None` if the parts are not hashable.

    The key also covers the sources of lopt, the versions of the main packages, the kind
    and the number of devices, and whether native code is available.

    Args:
        *parts: Inputs of the computation: dataclasses of this project, arrays, PRNG
            keys, containers, scalars and strings. A string that names a CSV or text
            file is hashed with the size and modification time of the file.
    """
    versions = {package: metadata.version(package) for package in _VERSIONS}
    devices = jax.devices()
    where = [devices[0].device_kind, len(devices), native.is_available()]
    try:
        described = [source_hash(), versions, where, _describe(parts)]
    except TypeError:  # User-defined functions and classes have no stable description.
        return None
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def _file_of(name: str) -> Path | None:
    """Find the file of a dataset or text by its name or path, if it has one."""
    dataset = DATASETS.get(name)
    path = find_file(dataset.path if isinstance(dataset, CsvTable) else name)
    return path if name and path.is_file() else None


def _describe(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        if kind.__module__.split(".")[0] not in _OURS:
            raise TypeError(f"{kind} may change without a change of its name")
        fields = dataclasses.fields(value)
        content = {
            field.name: _describe(getattr(value, field.name)) for field in fields
        }
        return {"type": f"{kind.__module__}.{kind.__name__}", **content}
    if isinstance(value, jax.Array) and jnp.issubdtype(
        value.dtype, jax.dtypes.prng_key
    ):
        return _describe(jax.random.key_data(value))
    if isinstance(value, jax.Array | np.ndarray):
        array = np.asarray(value)
        digest = hashlib.sha256(array.tobytes()).hexdigest()
        return [str(array.dtype), list(array.shape), digest]
    if isinstance(value, Mapping):
        return {str(k): _describe(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_describe(item) for item in value]
    if isinstance(value, str) and (path := _file_of(value)) is not None:
        about = path.stat()
        return [value, about.st_size, about.st_mtime_ns]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{value!r} cannot be described")
