"""Metrics logging to a JSON Lines file and to Weights & Biases."""

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from meta_train.config.config import MetaTrainConfig

METRICS_FILE = "metrics.jsonl"


class MetricsLog:
    """Metrics log in ``RUN_DIR/metrics.jsonl`` and, unless disabled, in wandb."""

    def __init__(
        self,
        config: MetaTrainConfig,
        described: Mapping[str, Any],
        step: int,
        say: Callable[[str], None],
    ):
        """Open the log of a run at outer step `step`.

        Lines of later steps, written after the checkpoint that the run resumes from,
        are removed from the file. `described` is the serialized `config` for wandb.
        """
        path = config.run_dir / METRICS_FILE
        kept = [line for line in read_metrics(path) if line["step"] <= step]
        partial = path.with_suffix(".partial")
        partial.write_text("".join(json.dumps(line) + "\n" for line in kept))
        partial.replace(path)
        self._file = path.open("a")
        self._wandb = _start_wandb(config, described, say)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log `metrics` at outer step `step`.

        Non-finite values are written to the file as null and to wandb unchanged.
        """
        finite = {k: v if math.isfinite(v) else None for k, v in metrics.items()}
        self._file.write(json.dumps({"step": step, **finite}) + "\n")
        self._file.flush()
        if self._wandb is not None:
            self._wandb.log(dict(metrics), step=step)

    def close(self) -> None:
        """Close the file and finish the wandb run."""
        self._file.close()
        if self._wandb is not None:
            self._wandb.finish()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read a metrics file up to its first incomplete line.

    A process that is killed while writing leaves an incomplete last line. A missing
    file has no lines.
    """
    if not path.exists():
        return []
    lines = []
    for line in path.read_text().splitlines():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return lines


def _start_wandb(
    config: MetaTrainConfig, described: Mapping[str, Any], say: Callable[[str], None]
):
    if config.wandb == "off":
        return None
    os.environ.setdefault("WANDB_SILENT", "true")
    # The import takes half a second: skip it if wandb is off.
    import wandb

    options: dict[str, Any] = {
        "project": config.wandb_project,
        "name": config.run_dir.name,
        "dir": config.run_dir,
        "id": _wandb_id(config.run_dir),
        "resume": "allow",
        "config": dict(described),
        "settings": wandb.Settings(silent=True, console="off", init_timeout=30),
    }
    mode: Any = config.wandb
    try:
        if mode == "auto":
            # A prompt for an API key would block a batch job.
            has_key = wandb.login(prompt=False, verify=False)
            mode = os.environ.get("WANDB_MODE") or ("online" if has_key else "offline")
        return wandb.init(mode=mode, **options)
    except wandb.Error as error:
        say(f"wandb cannot be used online ({error}); logging offline.")
        wandb.teardown()  # The wandb service still holds the run id.
        return wandb.init(mode="offline", **options)


def _wandb_id(run_dir: Path) -> str:
    """Load the wandb id of the run, or create it on the first start."""
    path = run_dir / "wandb_id"
    if not path.exists():
        path.write_text(os.urandom(4).hex())
    return path.read_text()
