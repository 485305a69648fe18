"""Logging to TensorBoard event files."""

from collections.abc import Mapping

from typing_extensions import override

from meta_train.runtime.loggers.base import LoggedRun, Logger

TENSORBOARD_DIR = "tensorboard"


class TensorBoardLog(Logger):
    """Event files in ``RUN_DIR/tensorboard``."""

    def __init__(self, run: LoggedRun):
        import tensorboardX

        # A resumed run replaces the points after its checkpoint.
        self._writer = tensorboardX.SummaryWriter(
            str(run.config.run_dir / TENSORBOARD_DIR),
            purge_step=run.step + 1 if run.step else None,
            flush_secs=10,
            # Names end in seconds: a run may resume within the same second.
            filename_suffix=f".{run.step}",
        )

    @override
    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    @override
    def close(self) -> None:
        self._writer.close()
