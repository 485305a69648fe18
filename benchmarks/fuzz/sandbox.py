"""Limits on time, memory and opened files while a damaged file is read."""

import contextlib
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

SECONDS = 5.0
"""CPU time of one input."""
BLOCKED_SECONDS = 60.0
"""Wall-clock time of one input, which also passes for other processes."""
MEMORY = 10**9  # bytes of resident memory

_FORBIDDEN = (
    *("pickle.", "os.system", "os.exec", "os.spawn", "os.posix_spawn", "subprocess."),
    *("socket.connect", "socket.bind", "os.fork"),
)
_ROOT = Path(__file__).parents[2]
# Lazy imports, and properties of the machine.
_ALWAYS = (sys.prefix, sys.base_prefix, str(_ROOT), "/proc", "/sys", "/usr/share")
_DEVICES = ("/dev/null", "/dev/urandom", "/etc/localtime")


class TooSlowError(BaseException):
    """Timeout; a `BaseException`, so that `except Exception` does not catch it."""


class Sandbox:
    """Watches one thread while it reads a file.

    Attributes:
        violations: Forbidden events of the input that was read last.
    """

    def __init__(self, folders: Sequence[Path]):
        """Install an audit hook, which cannot be removed but is idle outside of `run`.

        Args:
            folders: Directories in which files may be opened, also for writing.
        """
        self.violations: list[str] = []
        self._writable = tuple(str(folder.resolve()) for folder in folders)
        self._is_active = False
        sys.addaudithook(self._audit)

    @contextlib.contextmanager
    def run(self) -> Iterator[None]:
        """Record forbidden events, and raise `TooSlowError` after `SECONDS`."""
        self.violations = []
        timers = {
            signal.ITIMER_PROF: (signal.SIGPROF, SECONDS),
            signal.ITIMER_REAL: (signal.SIGALRM, BLOCKED_SECONDS),
        }
        for timer, (number, seconds) in timers.items():
            signal.signal(number, _stop)
            signal.setitimer(timer, seconds)
        begin = time.process_time()
        self._is_active = True
        try:
            yield
            # Python ignores exceptions in callbacks of its garbage collector.
            if time.process_time() - begin > SECONDS:
                raise TooSlowError
        finally:
            self._is_active = False
            for timer, (number, _) in timers.items():
                signal.setitimer(timer, 0)
                signal.signal(number, signal.SIG_DFL)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._is_active:
            return
        if event.startswith(_FORBIDDEN):
            self.violations.append(f"{event} {arguments}"[:200])
        elif event == "open" and isinstance(arguments[0], str | bytes):
            path, _, flags = arguments
            if not self._is_allowed(os.fsdecode(path), flags):
                self.violations.append(f"opened {path!r}")

    def _is_allowed(self, path: str, flags: int) -> bool:
        is_write = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        # Reading follows the links in a folder. Writing through them is forbidden,
        # unless the system call refuses links.
        is_followed = is_write and not flags & os.O_NOFOLLOW
        real = os.path.realpath(path) if is_followed else os.path.abspath(path)
        # Temporary files, such as those of a rendered figure, are ours.
        folders = (*self._writable, tempfile.gettempdir()) if is_write else _ALWAYS
        return real in _DEVICES or real.startswith((*self._writable, *folders))


def _stop(*_: Any) -> None:
    raise TooSlowError


def resident() -> int:
    """Peak resident memory of this process in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def limit_memory() -> None:
    """Let allocations fail once about `MEMORY` is resident.

    Address space that threads and libraries have reserved so far does not count.
    """
    status = Path("/proc/self/status").read_text()
    rows = dict(line.split(":", 1) for line in status.splitlines())
    data, used = (1024 * int(rows[name].split()[0]) for name in ("VmData", "VmRSS"))
    most = data + MEMORY - used
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
