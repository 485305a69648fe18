"""Logging to Weights & Biases, which never blocks a run."""

import contextlib
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from typing_extensions import override

from lopt.errors import one_line
from lopt.files.atomic import write_atomically
from lopt.files.bounded import read_bounded
from meta_train.config.config import MetaTrainConfig
from meta_train.runtime.loggers.base import LoggedRun, Logger

_SERVICE = "wandb-core"
_SECONDS_TO_LOG, _SECONDS_TO_FINISH = 30.0, 300.0


class WandbLog(Logger):
    """Run of Weights & Biases, started or resumed by its id in the run directory."""

    def __init__(self, run: LoggedRun):
        self._run = _start(run.config, run.described, run.say)

    @override
    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        with _limited(_SECONDS_TO_LOG):
            self._run.log(dict(metrics), step=step)

    @override
    def close(self) -> None:
        with _limited(_SECONDS_TO_FINISH):
            self._run.finish()

    @override
    def abandon(self) -> None:
        _end_service()


def _start(
    config: MetaTrainConfig, described: Mapping[str, Any], say: Callable[[str], None]
) -> Any:
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    options: dict[str, Any] = {
        "project": config.wandb_project,
        "name": config.run_dir.name,
        "dir": config.run_dir,
        "resume": "allow",
        "config": dict(described),
        "settings": wandb.Settings(silent=True, console="off", init_timeout=30),
    }
    mode: Any = config.wandb
    options["id"] = _run_id(config.run_dir)
    try:
        if mode == "auto":
            # A prompt for an API key would block a batch job.
            has_key = wandb.login(prompt=False, verify=False)
            default = "online" if has_key else "offline"
            mode = os.environ.get("WANDB_MODE") or default
        return wandb.init(mode=mode, **options)
    except wandb.Error as error:
        reason = one_line(error)
        say(f"wandb cannot be used online ({reason}); logging offline.")
        wandb.teardown()  # The wandb service still holds the run id.
        return wandb.init(mode="offline", **options)


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Context that kills the wandb service after `seconds`.

    A service that is frozen blocks its callers; killing it raises an error in them.
    """
    timer = threading.Timer(seconds, _kill_service)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _kill_service() -> None:
    """Kill the wandb services that this process has started."""
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in task.read_text().split():
                if Path(f"/proc/{child}/comm").read_text().strip() == _SERVICE:
                    os.kill(int(child), signal.SIGKILL)


def _end_service() -> None:
    """End the connection to the service, which would raise again at exit."""
    import wandb

    with contextlib.suppress(Exception):
        wandb.teardown()


def _run_id(run_dir: Path) -> str:
    """Load the wandb id of the run; create it if it is missing or damaged."""
    path = run_dir / "wandb_id"
    with contextlib.suppress(OSError, ValueError):
        known = read_bounded(path, 64)
        if re.fullmatch(rb"[0-9a-z]{8}", known):
            return known.decode()
    new = os.urandom(4).hex()
    write_atomically(path, new)
    return new
