"""Several processes, one run: who is who, what they agree on, how they end together.

jax moves the numbers. Here is what the host programs need besides: `share`, by which
every process learns what all of them say, and a way out that waits for nobody.
"""

import contextlib
import json
import os
import platform
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

from lopt.describe import differences
from lopt.errors import UserError, is_for_user

Mode: TypeAlias = Literal["auto", "on", "off"]

# Seconds. A host that freezes is noticed after the first; nobody waits at the exit.
_HEARTBEAT, _SHUTDOWN = 20, 5
_CHUNK, _HEAD = 1_024, 4  # bytes
_FAULTS = "faults"
_VERSIONS = ("lopt", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint")


@dataclass(frozen=True)
class Launch:
    """How the processes of a run find each other; a cluster may say the rest."""

    distributed: Mode = "auto"
    """Whether there are several: auto if an address is given or a launcher says so."""
    coordinator_address: str | None = None
    """HOST:PORT of process 0, the same for all."""
    num_processes: int | None = None
    """How many there are."""
    process_id: int | None = None
    """Which one this is, from 0."""

    def __post_init__(self):
        address = self.coordinator_address
        if address is not None and not address.rpartition(":")[2].isdigit():
            raise UserError(
                f"--coordinator-address must be HOST:PORT; got {address!r}. "
                f"Try {address or '10.0.0.1'}:1234."
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
        """Whether there are other processes to be found."""
        if self.distributed != "auto":
            return self.distributed == "on"
        environment = os.environ.get
        launched = max(
            int(environment(name) or 1)
            for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
        )
        return (
            self.coordinator_address is not None
            or "JAX_COORDINATOR_ADDRESS" in os.environ
            or launched > 1
            or "," in environment("TPU_WORKER_HOSTNAMES", "")
        )


def start(launch: Launch) -> None:
    """Meets the other processes, if there are any, and says who this one is."""
    if not launch.is_distributed:
        return
    address = launch.coordinator_address or os.environ.get("JAX_COORDINATOR_ADDRESS")
    asked = (address, launch.num_processes, launch.process_id)
    try:
        jax.distributed.initialize(
            *asked,
            # All that is needed was said, or a cluster is asked for the rest.
            cluster_detection_method=None if None in asked else "deactivate",
            # jax would listen at every address that this host has.
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
    """Says which process this is."""
    return (
        f"Process {jax.process_index()} of {jax.process_count()} on "
        f"{socket.gethostname()}"
    )


def is_first() -> bool:
    """Whether this is the process that speaks and writes for all."""
    return jax.process_index() == 0


def share(text: str) -> list[str]:
    """Returns what each process says, in order; all must call it."""
    if jax.process_count() == 1:
        return [text]
    said = text.encode()
    size = _CHUNK
    while True:
        # Its length goes ahead, so that all know when to try again with more room;
        # few sizes, as each is a program of its own.
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


def together(function: Callable[[], object], *, first_only: bool = False) -> None:
    """Calls `function`; if a user's mistake stops one process, it stops all of them.

    Args:
        function: What to do; it must not wait for other processes.
        first_only: Whether the first process does it for all.
    """
    complaint = ""
    if is_first() or not first_only:
        try:
            function()
        except Exception as error:
            if jax.process_count() == 1 or not is_for_user(error):
                raise
            complaint = str(error)
    said = share(complaint)
    for i, text in enumerate(said):
        if text:
            raise UserError(text if i == 0 else f"process {i}: {text}")


def check_alike(described: dict) -> None:
    """Raises unless all processes run the same versions with the same flags."""
    if jax.process_count() == 1:
        return
    mine = {"flags": described, "versions": _versions()}
    theirs = [json.loads(text) for text in share(json.dumps(mine))]
    for i, other in enumerate(theirs):
        different = differences(theirs[0], other)
        if different:
            raise UserError(
                f"all processes must be started alike; process {i} differs from "
                "process 0 (process 0 -> it):\n  " + "\n  ".join(different)
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
    """Raises unless all processes see the same `directory`."""
    if jax.process_count() == 1:
        return
    mark = directory / ".shared"
    token = share(os.urandom(8).hex())[0]
    if is_first():
        mark.write_text(token)
    share("")  # it is written now
    try:
        found = mark.read_text() == token
    except OSError:
        found = False
    blind = [i for i, text in enumerate(share(str(found))) if text != "True"]
    if is_first():
        mark.unlink(missing_ok=True)
    if blind:
        raise UserError(
            f"`{flag}` must be a directory that all hosts share; {directory} of "
            f"process 0 is not what process {', '.join(map(str, blind))} sees there. "
            "Try a network file system."
        )


@contextlib.contextmanager
def ending_together(run_dir: Path) -> Iterator[None]:
    """Lets no process wait for another that is gone, and says what has happened."""
    forget = lambda: [path.unlink() for path in (run_dir / _FAULTS).glob("process-*")]
    together(forget, first_only=True)
    try:
        yield
    except Exception as error:
        if jax.process_count() == 1:
            raise
        _leave(error, run_dir)


def _leave(error: Exception, run_dir: Path) -> NoReturn:
    # Not by raising: jax would wait for the others, and they wait for this one.
    mistake = is_for_user(error)
    fault = f"{type(error).__name__}: {error}".splitlines()[0]
    if not mistake and not _is_from_outside(error):
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


def _is_from_outside(error: BaseException) -> bool:
    """Whether jax reports here that something happened to another process."""
    signs = ("Gloo", "Connection closed by peer", "coordination", "UNAVAILABLE")
    return any(sign in str(error) for sign in signs)


def _record(run_dir: Path, fault: str) -> None:
    folder = run_dir / _FAULTS
    with contextlib.suppress(OSError):  # the others then say only that it is gone
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"process-{jax.process_index()}").write_text(f"{name()}: {fault}")


def _recorded(run_dir: Path) -> str:
    folder = run_dir / _FAULTS
    faults = [path.read_text() for path in sorted(folder.glob("process-*"))]
    return "; ".join(faults)
