"""Logging to Weights & Biases, which never ends or blocks a run."""

import contextlib
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lopt.errors import one_line
from lopt.files.atomic import write_atomically
from lopt.files.bounded import read_bounded
from meta_train.config.config import MetaTrainConfig

_SERVICE = "wandb-core"
_SECONDS_TO_LOG, _SECONDS_TO_FINISH = 30.0, 300.0


class WandbLog:
    """Run of Weights & Biases; after a failure, reported once, it ignores all calls."""

    def __init__(
        self,
        config: MetaTrainConfig,
        described: Mapping[str, Any],
        say: Callable[[str], None],
    ):
        """Start or resume the wandb run, unless `config` disables it.

        `described` is the serialized `config`.
        """
        self._say = say
        self._run = _start(config, described, say)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log `metrics` at outer step `step`."""
        if self._run is None:
            return
        try:
            with _limited(_SECONDS_TO_LOG):
                self._run.log(dict(metrics), step=step)
        except Exception as error:  # for example, if its service was killed
            self._say(
                f"wandb has failed ({one_line(error)}); the run continues without it. "
                "metrics.jsonl has all metrics."
            )
            self._run = None
            _end_service()

    def close(self) -> None:
        """Finish the wandb run."""
        if self._run is None:
            return
        try:
            with _limited(_SECONDS_TO_FINISH):
                self._run.finish()
        except Exception as error:
            self._say(f"wandb could not finish the run ({one_line(error)}).")
            _end_service()


def _start(
    config: MetaTrainConfig, described: Mapping[str, Any], say: Callable[[str], None]
) -> Any:
    if config.wandb == "off":
        return None
    os.environ.setdefault("WANDB_SILENT", "true")
    # The import takes half a second: skip it if wandb is off.
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
    try:
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
    except Exception as error:  # such as a full disk
        say(f"wandb cannot be started ({one_line(error)}); the run does not use it.")
        return None


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
