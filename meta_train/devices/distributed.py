"""Multi-process runs: startup, agreement between hosts, and shutdown after errors.

JAX communicates arrays between devices. This module adds host-side utilities: `share`
all-gathers strings over processes, and `ending_together` exits every process if one of
them fails, without waiting for a process that is gone.
"""

import contextlib
import json
import math
import os
import platform
import re
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal, NoReturn, TypeAlias

import jax
import numpy as np
from jax.experimental import multihost_utils

from lopt.errors import UserError
from lopt.files.dataclass_json import differences
from lopt.source_hash import source_hash
from meta_train.devices.rendezvous import meet

Mode: TypeAlias = Literal["auto", "on", "off"]

# Timeouts in seconds: a host that freezes is detected after `_HEARTBEAT`, and the
# barrier at exit is short, so that no process waits long for one that is gone.
_HEARTBEAT, _SHUTDOWN = 20, 5
_CHUNK, _HEAD = 1_024, 4  # Initial message size and length header, in bytes.
_FAULTS = "faults"
_VERSIONS = ("lopt", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint")


@dataclass(frozen=True)
class Launch:
    """Arguments of `jax.distributed.initialize`.

    JAX detects missing values from the cluster environment.
    """

    distributed: Mode = "auto"
    """Whether the run has several processes. `auto` enables it if a coordinator address
    is given or a launcher with several processes is detected."""
    coordinator_address: str | None = None
    """HOST:PORT of process 0, identical on all processes."""
    num_processes: int | None = None
    """Number of processes."""
    process_id: int | None = None
    """Index of this process, in [0, num_processes)."""
    join_seconds: float = 30.0
    """Time to wait for the other processes at the start."""

    def __post_init__(self):
        address = self.coordinator_address
        host, _, port = (address or "10.0.0.1:1234").rpartition(":")
        is_port = re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 2**16
        if not (host and is_port):
            raise UserError(
                "--coordinator-address must be HOST:PORT with a port from 1 to 65535; "
                f"got {address!r}. Try {host or '10.0.0.1'}:1234."
            )
        if not self.join_seconds > 0:
            raise UserError(
                f"--join-seconds must be positive; got {self.join_seconds}. Try 30."
            )
        known = (address, self.num_processes, self.process_id)
        if self.distributed == "off" and known != (None, None, None):
            raise UserError(
                "--distributed off must come without --coordinator-address, "
                "--num-processes and --process-id. Try --distributed on."
            )
        if self.process_id is not None and not (
            0 <= self.process_id < (self.num_processes or 0)
        ):
            raise UserError(
                "--process-id must lie below --num-processes, from 0 on; got "
                f"{self.process_id} of {self.num_processes}."
            )

    @property
    def is_distributed(self) -> bool:
        """Whether `start` initializes `jax.distributed`.

        With `auto`, this is the case if a coordinator address is given, if Slurm or
        Open MPI launched several processes, or if the TPU slice has several hosts.
        """
        if self.distributed != "auto":
            return self.distributed == "on"
        environment = os.environ.get
        launched = max(map(_count, ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")))
        return (
            self.coordinator_address is not None
            or "JAX_COORDINATOR_ADDRESS" in os.environ
            or launched > 1
            or "," in environment("TPU_WORKER_HOSTNAMES", "")
        )


def _say(text: str) -> None:
    print(text, flush=True)


def _count(variable: str) -> int:
    """Read a number of processes from the environment; 1 if it is not set."""
    value = os.environ.get(variable) or "1"
    if not re.fullmatch("[0-9]{1,9}", value):
        raise UserError(
            f"the variable {variable} must be a number of processes; got {value!r}. "
            "Try to unset it, or --distributed off."
        )
    return int(value)


def start(launch: Launch) -> None:
    """Initialize `jax.distributed` if the run has several processes.

    Prints the process index, the host name and the number of local devices.

    Raises:
        UserError: If the processes cannot connect to each other.
    """
    if not launch.is_distributed:
        return
    address = launch.coordinator_address or os.environ.get("JAX_COORDINATOR_ADDRESS")
    asked = (address, launch.num_processes, launch.process_id)
    num, own_id = launch.num_processes, launch.process_id
    if address and num and own_id is not None:
        meet(address, num, own_id, launch.join_seconds, _say)
    try:
        jax.distributed.initialize(
            *asked,
            initialization_timeout=math.ceil(launch.join_seconds),
            # Detect the cluster only if an argument is missing.
            cluster_detection_method=None if None in asked else "deactivate",
            # By default, the coordinator would listen on all interfaces of the host.
            coordinator_bind_address=address,
            heartbeat_timeout_seconds=_HEARTBEAT,
            shutdown_timeout_seconds=_SHUTDOWN,
        )
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"the processes of the run must find each other; {error} Try "
            "--coordinator-address HOST:PORT, --num-processes and --process-id on "
            "every host, or --distributed off."
        ) from error
    own = jax.local_devices()
    print(
        f"{name()} has {len(own)} of the {jax.device_count()} devices "
        f"({own[0].device_kind}).",
        flush=True,
    )


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
