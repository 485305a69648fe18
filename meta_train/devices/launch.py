"""Start of multi-process runs: the processes find each other.

`Launch` validates the arguments, and `start` initializes `jax.distributed` after the
processes have met.
"""

import math
import os
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

import jax

from lopt.errors import UserError
from meta_train.devices.distributed import name
from meta_train.devices.rendezvous import meet

Mode: TypeAlias = Literal["auto", "on", "off"]

# Timeouts in seconds: a host that freezes is detected after `_HEARTBEAT`, and the
# barrier at exit is short, so that no process waits long for one that is gone.
_HEARTBEAT, _SHUTDOWN = 20, 5


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
        address = None if self.distributed == "off" else self.address
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
        known = (self.coordinator_address, self.num_processes, self.process_id)
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
    def address(self) -> str | None:
        """HOST:PORT of process 0, if the flag or the environment gives it."""
        environment = os.environ.get("JAX_COORDINATOR_ADDRESS")
        return self.coordinator_address or environment or None

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
            self.address is not None
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
    address = launch.address
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
