"""Results that are kept between evaluations, by a hash of all that they depend on."""

import contextlib
import dataclasses
import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from evaluation import runs
from evaluation.runs import Curves, Runs
from tasks.base import Family

_FORMAT = 3  # to be raised when the same description gives other numbers
_OURS = ("lopt", "tasks", "meta_train", "evaluation")
_VERSIONS = ("lopt", "jax", "jaxlib", "flax", "optax")
Arrays = TypeVar("Arrays", bound=tuple)


class Cache:
    """A folder of arrays; without one nothing is kept."""

    def __init__(self, folder: Path | None = None):
        """Keeps what it is given in `folder`."""
        self._folder = folder

    def train(
        self, task: Family, num_steps: int, groups: Sequence[Runs]
    ) -> list[Curves]:
        """Does what `runs.train` does, for those groups that are not there yet."""
        names = [name_of(task, num_steps, group) for group in groups]
        found = [self.get(name, Curves) for name in names]
        missing = [i for i, curves in enumerate(found) if curves is None]
        if missing:
            new = runs.train(task, num_steps, [groups[i] for i in missing])
            for i, curves in zip(missing, new, strict=True):
                found[i] = curves
                self.put(names[i], curves)
        return [curves for curves in found if curves is not None]

    def get(self, name: str | None, kind: type[Arrays]) -> Arrays | None:
        """Returns the named tuple that is kept under `name`; nothing if damaged."""
        if self._folder is None or name is None:
            return None
        fields = kind._fields  # pyright: ignore[reportAttributeAccessIssue]
        try:
            with (self._folder / f"{name}.npz").open("rb") as file:
                content = np.load(file, allow_pickle=False)
                return kind(*(content[field] for field in fields))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None

    def put(self, name: str | None, arrays: Any) -> None:
        """Keeps a named tuple of arrays, whole or not at all."""
        if self._folder is None or name is None:
            return
        with contextlib.suppress(OSError):  # it is computed again next time
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                np.savez_compressed(file, **arrays._asdict())
            Path(file.name).replace(self._folder / f"{name}.npz")


def name_of(*parts: Any) -> str | None:
    """Returns a name for what is computed from `parts`; none if they defy hashing."""
    versions = {package: metadata.version(package) for package in _VERSIONS}
    device = jax.devices()[0]
    try:
        described = [_FORMAT, versions, device.device_kind, _describe(parts)]
    except TypeError:  # somebody's own functions
        return None
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


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
    if isinstance(value, str) and os.path.isfile(value):  # a dataset of the user's
        about = os.stat(value)
        return [value, about.st_size, about.st_mtime_ns]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{value!r} cannot be described")
