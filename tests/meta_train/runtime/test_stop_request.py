"""Stop requests: signals are answered while the main thread is busy."""

import ctypes
import os
import signal
import threading

import pytest

from meta_train.runtime.stop_request import StopRequest


def default_handler(number, frame):
    raise AssertionError("the handler of the context must run")


@pytest.mark.parametrize(
    ("number", "name"),
    [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM"), (signal.SIGHUP, "SIGHUP")],
)
def test_a_signal_is_answered_while_the_main_thread_runs_native_code(number, name):
    # Signals may be ignored where the tests run, as under `nohup`.
    before = signal.signal(number, default_handler)
    said, answered = [], threading.Event()

    def say(text):
        said.append(text)
        answered.set()

    with StopRequest(say) as stop:
        threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
        # As the compiler does: no bytecode runs in the main thread for a while.
        libc = ctypes.CDLL(None)
        left = 50
        while left and not answered.is_set():
            libc.usleep(100_000)
            left -= 1
        assert answered.is_set()
        assert stop.name == name
    assert len(said) == 1
    assert said[0].startswith(f"{name}: saving before exit")
    assert signal.signal(number, before) is default_handler


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest(print) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert stop.name is None
    finally:
        signal.signal(signal.SIGHUP, before)
