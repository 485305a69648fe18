"""Meeting of the processes of a run, before JAX connects them.

`jax.distributed.initialize` aborts the process, or waits for minutes, if a process is
missing, if the port is in use, or if two processes have the same index. Here, process 0
first listens on the coordinator's address until all others have connected, and answers
each with one line.
"""

import contextlib
import json
import socket
import time
from collections.abc import Callable
from typing import Any

from lopt.errors import UserError, one_line

_SECONDS_BEFORE_A_WORD = 3.0
_LONGEST_LINE = 4_096


def meet(
    address: str,
    num_processes: int,
    process_id: int,
    seconds: float,
    say: Callable[[str], None],
) -> None:
    """Wait until all processes of the run have connected to process 0.

    Args:
        address: ``HOST:PORT`` of process 0.
        num_processes: Number of processes.
        process_id: Index of this process.
        seconds: Time to wait.
        say: Callback for a line that names the missing processes.

    Raises:
        UserError: If a process is missing, the port is in use, or the processes were
            given different numbers.
    """
    host, _, port = address.rpartition(":")
    place = host.strip("[]"), int(port)
    end = time.monotonic() + seconds
    if process_id == 0:
        _host(place, num_processes, end, say)
    else:
        _join(place, {"id": process_id, "num": num_processes}, end, say)


def _host(
    place: tuple[str, int], num: int, end: float, say: Callable[[str], None]
) -> None:
    """Accept one connection of every other process, then let all of them go on."""
    try:
        family = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)[0][0]
        server = socket.create_server(place, family=family, backlog=num)
    except OSError as error:
        raise UserError(
            f"process 0 must be able to listen on {place[0]}:{place[1]}; "
            f"{error.strerror or error}. Try another port of --coordinator-address."
        ) from error
    joined: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(server)
        start = time.monotonic()
        while len(joined) < num - 1:
            for i in [i for i, connection in joined.items() if _has_left(connection)]:
                joined.pop(i).close()
            missing = [i for i in range(1, num) if i not in joined]
            if time.monotonic() > end:
                fault = (
                    f"all {num} processes must join within the timeout; "
                    f"{_named(missing)} did not. Try to start it, or a longer "
                    "--join-seconds."
                )
                for connection in joined.values():
                    _send(connection, {"fault": fault})
                raise UserError(fault)
            if time.monotonic() > start + _SECONDS_BEFORE_A_WORD:
                start = float("inf")
                say(f"Waiting for {len(missing)} of {num} processes: {_named(missing)}")
            server.settimeout(0.2)
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                stack.enter_context(connection)
                _admit(connection, joined, num)
        for connection in joined.values():
            _send(connection, {"fault": ""})


def _admit(
    connection: socket.socket, joined: dict[int, socket.socket], num: int
) -> None:
    """Add a process to `joined`, or tell it why it cannot join."""
    connection.settimeout(2.0)
    hello = _receive(connection)
    i = hello.get("id")
    if type(i) is not int or not 0 < i < num or hello.get("num") != num:
        fault = (
            f"all processes must be given --num-processes {num}, as process 0 is, and "
            f"an index of their own below it; got {hello.get('num')} and {i}."
        )
        _send(connection, {"fault": fault})
    elif i in joined and not _has_left(joined[i]):
        fault = f"--process-id must be unique; another process {i} has joined the run."
        _send(connection, {"fault": fault})
    else:
        joined[i] = connection


def _join(
    place: tuple[str, int],
    hello: dict[str, int],
    end: float,
    say: Callable[[str], None],
) -> None:
    start, name = time.monotonic(), f"{place[0]}:{place[1]}"
    while True:
        try:
            connection = socket.create_connection(place, timeout=2.0)
            break
        except OSError as error:
            if time.monotonic() > end:
                raise UserError(
                    f"process 0 must be reachable at {name}; {error.strerror or error}."
                    " Try to start it, or another --coordinator-address."
                ) from error
            if time.monotonic() > start + _SECONDS_BEFORE_A_WORD:
                start = float("inf")
                say(f"Waiting for process 0 at {name}.")
            time.sleep(0.1)
    with connection:
        _send(connection, hello)
        connection.settimeout(max(end - time.monotonic(), 0) + 5.0)
        answer = _receive(connection)
    if answer.get("fault") != "":
        fault = answer.get("fault") or (
            f"process 0 must wait for this process at {name}; it does not answer. "
            "The run may have started already, or another program uses the port."
        )
        raise UserError(one_line(fault))


def _has_left(connection: socket.socket) -> bool:
    """Check whether a process that has joined was killed, and may join again."""
    connection.setblocking(False)
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.settimeout(2.0)


def _named(processes: list[int]) -> str:
    return f"process {', '.join(map(str, processes))}"


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(message).encode() + b"\n")


def _receive(connection: socket.socket) -> dict[str, Any]:
    """Receive one line with a JSON object; an empty dictionary if there is none."""
    with contextlib.suppress(OSError, ValueError):
        with connection.makefile("rb") as file:
            message = json.loads(file.readline(_LONGEST_LINE))
        return message if isinstance(message, dict) else {}
    return {}
