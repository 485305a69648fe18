"""Stop requests by signals, answered while the main thread compiles or computes."""

import os
import signal
import threading
from collections.abc import Callable

from meta_train.runtime.progress import in_notebook

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest:
    """Context that turns Ctrl-C, SIGTERM and SIGHUP into a stop request.

    A further Ctrl-C exits at once, without saving. Python runs signal handlers in the
    main thread between two bytecodes, that is, after a compilation has ended. A thread
    therefore reads the signals from a pipe and answers immediately. A signal that is
    ignored, as SIGHUP under `nohup`, stays ignored. In a notebook, a further interrupt
    is ignored, since exiting would lose the variables of the user.

    Must be entered in the main thread.

    Attributes:
        name: Name of the signal that requested the stop; `None` without a request.
    """

    def __init__(self, say: Callable[[str], None]):
        """Initialize without a request."""
        self.name: str | None = None
        self._say = say
        self._previous = {}

    def __enter__(self) -> "StopRequest":
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._previous_writer = signal.set_wakeup_fd(self._writer)
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                # The interpreter writes to the pipe only for signals with a handler.
                self._previous[number] = signal.signal(number, lambda *_: None)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_writer)
        os.close(self._writer)  # ends the thread
        self._thread.join()
        os.close(self._reader)

    def _watch(self) -> None:
        while numbers := os.read(self._reader, 1):
            if numbers[0] in self._previous:
                self._handle(numbers[0])

    def _handle(self, number: int) -> None:
        if self.name is not None and number == signal.SIGINT and not in_notebook():
            os._exit(130)
        if self.name is not None:
            return
        self.name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        again = "" if in_notebook() else "; press Ctrl-C to exit without saving"
        self._say(
            f"{self.name}: saving before exit, as soon as the running compilation or "
            f"update ends{again}."
        )
