"""Multi-process runs: agreement between hosts, and shutdown after errors.

JAX communicates arrays between devices. This module adds host-side utilities: `share`
all-gathers strings over processes, and `ending_together` exits every process if one of
them fails, without waiting for a process that is gone.
"""

import contextlib
import json
import os
import platform
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

from lopt.errors import UserError
from lopt.files.dataclass_json import differences
from lopt.source_hash import source_hash

_CHUNK, _HEAD = 1_024, 4  # Initial message size and length header, in bytes.
_FAULTS = "faults"
_VERSIONS = ("lopt", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint")


def name() -> str:
    """Format the index of this process, the process count and the host name."""
    return (
        f"Process {jax.process_index()} of {jax.process_count()} on "
        f"{socket.gethostname()}"
    )


def is_first() -> bool:
    """Check whether this is process 0, which prints and writes for all processes."""
    return jax.process_index() == 0


def all_gather_text(text: str) -> list[str]:
    """All-gather a string over processes (collective).

    Args:
        text: String of this process. Lengths may differ between processes.

    Returns:
        Strings of all processes, ordered by process index.
    """
    if jax.process_count() == 1:
        return [text]
    said = text.encode()
    size = _CHUNK
    while True:
        # A header with the length tells all processes whether to retry with a larger
        # message. Sizes grow by a factor of 4, since each size compiles a program.
        message = np.zeros(size, np.uint8)
        message[:_HEAD] = np.frombuffer(len(said).to_bytes(_HEAD, "big"), np.uint8)
        head = said[: size - _HEAD]
        message[_HEAD : _HEAD + len(head)] = np.frombuffer(head, np.uint8)
        found = [bytes(row) for row in _gather(message)]
        lengths = [int.from_bytes(row[:_HEAD], "big") for row in found]
        if max(lengths) <= size - _HEAD:
            ends = [_HEAD + n for n in lengths]
            return [
                row[_HEAD:end].decode() for row, end in zip(found, ends, strict=True)
            ]
        size *= 4


def _gather(array: np.ndarray) -> np.ndarray:
    return np.asarray(multihost_utils.process_allgather(array))


def run_collectively(
    function: Callable[[], object], *, first_only: bool = False
) -> None:
    """Call `function` and raise its user errors on all processes (collective).

    Args:
        function: Function to call. It must not contain collectives.
        first_only: Whether to call it on process 0 only.

    Raises:
        UserError: On every process, if `function` raises a user error on one of them.
            Other exceptions propagate on the process that raised them.
    """
    complaint = ""
    if is_first() or not first_only:
        try:
            function()
        except Exception as error:
            if jax.process_count() == 1 or not isinstance(error, UserError):
                raise
            complaint = str(error)
    said = all_gather_text(complaint)
    for i, text in enumerate(said):
        if text:
            raise UserError(text if i == 0 else f"process {i}: {text}")


def check_alike(described: dict) -> None:
    """Validate that all processes have the same versions and flags (collective).

    Args:
        described: JSON-serializable description of the flags of this process.
    """
    if jax.process_count() == 1:
        return
    mine = {"flags": described, "versions": _versions(), "sources": source_hash()}
    theirs = [json.loads(text) for text in all_gather_text(json.dumps(mine))]
    for i, other in enumerate(theirs):
        different = differences(theirs[0], other)
        if different:
            raise UserError(
                f"all processes must be started alike; process {i} differs from "
                "process 0 (process 0 -> it):\n  " + "\n  ".join(different)
            )


def check_equal(what: str, value: str) -> None:
    """Validate that a string is equal on all processes (collective).

    Args:
        what: Description for the error message.
        value: String of this process, such as a hash.
    """
    values = all_gather_text(value)
    others = [i for i, other in enumerate(values) if other != values[0]]
    if others:
        raise UserError(
            f"{what} must be equal on all processes; process "
            f"{', '.join(map(str, others))} differs from process 0. Try the same "
            "software and the same kind of device on every host."
        )


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _VERSIONS:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def check_shared(directory: Path, flag: str) -> None:
    """Validate that `directory` is shared by all processes (collective).

    Process 0 writes a random token to a file, which all processes must then read.

    Args:
        directory: Directory to check.
        flag: Command-line flag to name in the error message.
    """
    if jax.process_count() == 1:
        return
    mark = directory / ".shared"
    token = all_gather_text(os.urandom(8).hex())[0]
    if is_first():
        mark.write_text(token)
    all_gather_text("")  # Barrier: the token is written before any process reads it.
    try:
        found = mark.read_text() == token
    except OSError:
        found = False
    blind = [i for i, text in enumerate(all_gather_text(str(found))) if text != "True"]
    if is_first():
        mark.unlink(missing_ok=True)
    if blind:
        raise UserError(
            f"`{flag}` must be a directory that all hosts share; process "
            f"{', '.join(map(str, blind))} does not see {directory} of process 0. "
            "Try a network file system."
        )


@contextlib.contextmanager
def ending_together(run_dir: Path) -> Iterator[None]:
    """Context that exits all processes if one of them fails (collective).

    A failing process records its error in ``RUN_DIR/faults``. The others report it when
    their connection to the failed process breaks. The exit code is 2 for user errors
    and 1 otherwise. With a single process, exceptions propagate.
    """

    def forget():
        return [path.unlink() for path in (run_dir / _FAULTS).glob("process-*")]

    run_collectively(forget, first_only=True)
    try:
        yield
    except Exception as error:
        if jax.process_count() == 1:
            raise
        _leave(error, run_dir)


def _leave(error: Exception, run_dir: Path) -> NoReturn:
    # Exit without raising: JAX would wait for the other processes at exit, while they
    # wait for this one.
    mistake = isinstance(error, UserError)
    fault = f"{type(error).__name__}: {error}".splitlines()[0]
    if not mistake and not is_from_outside(error):
        traceback.print_exception(error)
        _record(run_dir, fault)
    elif not mistake:
        fault = _recorded(run_dir) or (
            f"another process is gone: it was killed, or its host was. ({fault[:200]})"
        )
    sys.stdout.flush()
    text = (
        str(error) if mistake else f"{fault}\nThe same command on every host resumes."
    )
    if not mistake or is_first():
        print(f"lopt meta-train: {name()}: {text}", file=sys.stderr, flush=True)
    os._exit(2 if mistake else 1)


def is_from_outside(error: BaseException) -> bool:
    """Check whether JAX raised `error` because another process failed."""
    signs = ("Gloo", "Connection closed by peer", "coordination", "UNAVAILABLE")
    return any(sign in str(error) for sign in signs)


def _record(run_dir: Path, fault: str) -> None:
    folder = run_dir / _FAULTS
    # Without a record, the other processes report only that this one is gone.
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"process-{jax.process_index()}").write_text(f"{name()}: {fault}")


def _recorded(run_dir: Path) -> str:
    folder = run_dir / _FAULTS
    faults = [path.read_text() for path in sorted(folder.glob("process-*"))]
    return "; ".join(faults)
