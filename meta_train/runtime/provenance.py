"""Record of the data and code that a run began with, and of its history."""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lopt.errors import UserError
from lopt.files.atomic import write_atomically
from lopt.files.dataclass_json import differences
from lopt.files.json_file import read_object
from lopt.source_hash import source_hash
from tasks.base import Data

PROVENANCE_FILE = "provenance.json"
_PACKAGES = ("lopt", "jax", "jaxlib", "flax", "optax")
_NUM_BLOCKS, _ROUNDING = 64, 1e-5


def record_provenance(
    run_dir: Path,
    names: Sequence[str],
    data: Sequence[Data],
    events: Sequence[str],
    say: Callable[[str], None],
) -> None:
    """Write the record of a new run, or compare that of an existing one.

    Args:
        run_dir: Run directory.
        names: Names of the systems.
        data: Output of `load` of each system.
        events: New entries of the history, such as an extension.
        say: Callback for a warning about other versions of the code.

    Raises:
        UserError: If the data of a system has changed since the run began, by more than
            the rounding of another machine.
    """
    path = run_dir / PROVENANCE_FILE
    now = {
        "versions": {name: metadata.version(name) for name in _PACKAGES},
        "source": source_hash()[:12],
        "data": {
            name: _fingerprint(each) for name, each in zip(names, data, strict=True)
        },
    }
    begun, history = _read(path) or (now, [])
    pairs = {
        name: (begun["data"].get(name, found), found)
        for name, found in now["data"].items()
    }
    different = [name for name, (old, new) in pairs.items() if old != new]
    changed = [name for name in different if not _are_close(*pairs[name])]
    if changed:
        raise UserError(
            f"the data of a run must not change; that of {', '.join(changed)} is not "
            f"the data with which {run_dir} began. Try the earlier files, or another "
            "--run-dir."
        )
    if different:
        say(
            f"The data of {', '.join(different)} differ in rounding from those with "
            "which the run began."
        )
    code = differences(
        {key: begun.get(key) for key in ("versions", "source")},
        {key: now[key] for key in ("versions", "source")},
    )
    if code:
        say(
            "The code has changed since the run began, so that results may differ in "
            f"rounding or more: {'; '.join(code)}."
        )
    record = {"begun": begun, "history": [*history, *events]}
    if path.exists() and not events:
        return
    try:
        write_atomically(path, json.dumps(record, indent=2) + "\n")
    except OSError as error:  # A full disk does not end a run.
        say(f"{path} cannot be written ({error.strerror or error}).")


def _read(path: Path) -> tuple[dict[str, Any], list[str]] | None:
    """Read a record; `None` if it is missing or damaged."""
    try:
        record = read_object(path)
    except (OSError, ValueError):
        return None
    begun, history = record.get("begun"), record.get("history")
    if not isinstance(begun, dict) or not isinstance(begun.get("data"), dict):
        return None
    if not isinstance(history, list):
        return None
    return begun, [str(event) for event in history]


def _fingerprint(data: Data) -> dict[str, Any]:
    """Describe the arrays of a system's data.

    Returns:
        The SHA-256 of all arrays, that of all shapes and of all arrays that are not
        floating-point, and the means of 64 blocks of each floating-point array, divided
        by its RMS. Generated data differ in rounding between machines.
    """
    everything, exact = hashlib.sha256(), hashlib.sha256()
    means: list[float] = []
    for leaf in jax.tree.leaves(data):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        array = np.asarray(leaf.addressable_data(0))
        everything.update(array.tobytes())
        exact.update(f"{array.dtype}{array.shape}".encode())
        if not np.issubdtype(array.dtype, np.floating):
            exact.update(array.tobytes())
        elif array.size:
            blocks = np.array_split(array.ravel(), min(_NUM_BLOCKS, array.size))
            rms = np.sqrt(np.mean(np.square(array, dtype=np.float64))) or 1.0
            means += [float(block.mean(dtype=np.float64) / rms) for block in blocks]
    return {
        "sha256": everything.hexdigest(),
        "exact": exact.hexdigest(),
        "means": [x if math.isfinite(x) else None for x in means],
    }


def _are_close(old: Any, new: dict[str, Any]) -> bool:
    """Check whether two fingerprints differ in rounding at most."""
    if not isinstance(old, dict) or old.get("exact") != new["exact"]:
        return False
    try:
        before, now = (np.asarray(x["means"], float) for x in (old, new))
    except (KeyError, TypeError, ValueError):  # damaged
        return False
    return before.shape == now.shape and np.allclose(
        before, now, rtol=0, atol=_ROUNDING, equal_nan=True
    )
