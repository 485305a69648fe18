"""Meeting of processes: missing, duplicate and unlike processes are named."""

import contextlib
import socket
import threading
import time

import pytest

from lopt.errors import UserError
from meta_train.devices import rendezvous
from meta_train.devices.rendezvous import meet


@pytest.fixture
def address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def run(address, *processes, seconds=1.0):
    """Let processes ``(num, id)`` meet; return the error message of each, or None."""
    found = [None] * len(processes)

    def one(i, num, process_id):
        with contextlib.suppress(UserError):
            try:
                meet(address, num, process_id, seconds, print)
            except UserError as error:
                found[i] = str(error)

    threads = []
    for i, (num, process_id) in enumerate(processes):
        threads.append(threading.Thread(target=one, args=(i, num, process_id)))
        threads[-1].start()
        time.sleep(0.05)  # a fixed order of arrival
    for thread in threads:
        thread.join()
    return found


def test_processes_meet_in_any_order(address):
    assert run(address, (3, 2), (3, 0), (3, 1), seconds=10) == [None] * 3


def test_a_single_process_meets_itself(address):
    assert run(address, (1, 0)) == [None]


def test_missing_processes_are_named_to_all(address):
    first, joined = run(address, (4, 0), (4, 2))
    for message in (first, joined):
        assert "process 1, 3 did not" in message


@pytest.mark.parametrize(
    ("process_id", "text"),
    [(0, "Waiting for 2 of 3 processes: process 1, 2"), (1, "Waiting for process 0")],
)
def test_waiting_process_names_the_missing_ones(process_id, text, address, monkeypatch):
    monkeypatch.setattr(rendezvous, "_SECONDS_BEFORE_A_WORD", 0.0)
    said = []
    with pytest.raises(UserError):
        meet(address, 3, process_id, 0.5, said.append)
    assert len(said) == 1
    assert said[0].startswith(text)


def test_a_process_without_a_coordinator_gives_up(address):
    (message,) = run(address, (2, 1), seconds=0.3)
    assert message.startswith(f"process 0 must be reachable at {address}")


def test_a_duplicate_is_refused_and_the_others_go_on(address):
    first, one, duplicate, two = run(
        address, (3, 0), (3, 1), (3, 1), (3, 2), seconds=10
    )
    assert first is one is two is None
    assert "--process-id must be unique; another process 1" in duplicate


def test_processes_of_another_run_are_refused(address):
    first, other, one = run(address, (2, 0), (5, 3), (2, 1), seconds=10)
    assert first is one is None
    assert "--num-processes 2" in other


def test_a_port_in_use_is_named(address):
    host, port = address.split(":")
    with socket.create_server((host, int(port))):
        first, other = run(address, (2, 0), (2, 1), seconds=0.3)
    assert "must be able to listen" in first
    assert "another program uses the port" in other


@pytest.fixture
def join_and_leave(address):
    """Function that joins as process 1 of 3 and exits, once process 0 listens."""
    host, port = address.split(":")

    def join():
        while True:
            with contextlib.suppress(OSError):
                connection = socket.create_connection((host, int(port)))
                break
        connection.sendall(b'{"id": 1, "num": 3}\n')
        connection.close()

    return join


def test_a_process_that_was_killed_while_waiting_may_join_again(
    address, join_and_leave
):
    found = []
    host = threading.Thread(
        target=lambda: found.extend(run(address, (3, 0), seconds=10))
    )
    host.start()
    join_and_leave()
    assert run(address, (3, 1), (3, 2), seconds=10) == [None, None]
    host.join()
    assert found == [None]


def test_a_process_that_was_killed_while_waiting_is_missing(address, join_and_leave):
    killed = threading.Thread(target=join_and_leave)
    killed.start()
    (message,) = run(address, (3, 0))
    killed.join()
    assert "process 1, 2 did not" in message
