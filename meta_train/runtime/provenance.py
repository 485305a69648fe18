"""Record of the data and code that a run began with, and of its history."""

import hashlib
import json
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
        UserError: If the data of a system has changed since the run began.
    """
    path = run_dir / PROVENANCE_FILE
    now = {
        "versions": {name: metadata.version(name) for name in _PACKAGES},
        "source": source_hash()[:12],
        "data": {name: _digest(each) for name, each in zip(names, data, strict=True)},
    }
    begun, history = _read(path) or (now, [])
    changed = [
        name
        for name in names
        if begun.get("data", {}).get(name, now["data"][name]) != now["data"][name]
    ]
    if changed:
        raise UserError(
            f"the data of a run must not change; that of {', '.join(changed)} is not "
            f"the data with which {run_dir} began. Try the earlier files, or another "
            "--run-dir."
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


def _digest(data: Data) -> str:
    """SHA-256 of the arrays of a system's data."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(data):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        array = np.asarray(leaf.addressable_data(0))
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
