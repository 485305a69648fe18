"""Checkpoints: Orbax writes and restores them, a sha256 manifest vouches for them."""

import contextlib
import hashlib
import json
import logging
import re
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import jax
import orbax.checkpoint as ocp

from lopt.errors import UserError
from meta_train import distributed
from meta_train.trainer import OuterState

_MANIFEST = "sha256.json"
_NUM_KEPT = 3


class Checkpoints:
    """The checkpoints of one run.

    A checkpoint counts once its manifest is written, which happens in the background
    after Orbax has committed it. Older ones are kept in case the newest is damaged.
    """

    def __init__(
        self, directory: Path, say: Callable[[str], None], *, read_only: bool = False
    ):
        """Opens `directory`.

        Args:
            directory: Where the checkpoints are, or will be.
            say: Is told about damaged checkpoints.
            read_only: Whether another process may be writing; otherwise damaged
                checkpoints are moved aside.
        """
        self._directory, self._say = directory.absolute(), say
        self._read_only = read_only
        latest = None
        if distributed.is_first():
            if not read_only:
                self._directory.mkdir(parents=True, exist_ok=True)
            latest = self._last_good_step(say, read_only)
        self.latest: int | None = json.loads(distributed.share(json.dumps(latest))[0])
        # Orbax warns of our choices, and tells at length what is told below.
        logging.getLogger("absl").setLevel(logging.CRITICAL)
        self._manager = self._open()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saving: tuple[int, Future[None]] | None = None

    def _open(self) -> ocp.CheckpointManager:
        return ocp.CheckpointManager(
            self._directory,
            item_handlers=ocp.StandardCheckpointHandler(),
            options=ocp.CheckpointManagerOptions(
                max_to_keep=None if self._read_only else _NUM_KEPT,
                cleanup_tmp_directories=not self._read_only,
                read_only=self._read_only,
                create=False,
            ),
        )

    def save(self, state: OuterState) -> None:
        """Starts to save `state`; the arrays may be donated as soon as it returns.

        If it cannot be written, that is said and the run goes on.
        """
        self.wait()
        step = int(state.step)
        if step == self.latest:
            return
        try:
            self._manager.save(step, args=ocp.args.StandardSave(state))
        except OSError as error:
            self._give_up(step, error)
        else:
            self._saving = step, self._worker.submit(self._seal, step)

    def save_last(self, state: OuterState) -> None:
        """Saves `state`, or raises: there is no later time to try it again."""
        self.save(state)
        self.wait()
        if self.latest != int(state.step):
            raise UserError(
                f"the last checkpoint must be written to {self._directory}; it cannot "
                "be. Try to make room, and the same command to resume."
            )

    def population_size(self) -> int:
        """Returns how many members the latest state has in each population."""
        assert self.latest is not None
        tree: Any = self._manager.item_metadata(self.latest)
        is_array = lambda x: hasattr(x, "shape")
        leaves = jax.tree.leaves(tree["populations"], is_leaf=is_array)
        return next(leaf.shape[0] for leaf in leaves if is_array(leaf))

    def restore(self, template: OuterState) -> OuterState:
        """Returns the latest state, placed like `template`."""
        target = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
            template,
        )
        arguments = ocp.args.StandardRestore(target)
        try:
            return cast(OuterState, self._manager.restore(self.latest, args=arguments))
        except ValueError as error:  # trees that differ; files are whole by now
            raise UserError(
                f"checkpoint {self.latest} in {self._directory} must hold what this "
                "version of lopt keeps of such a run; it holds something else. Try the "
                "version that wrote it, or another --run-dir."
            ) from error

    def wait(self) -> None:
        """Waits until all that was saved is on disk, or has failed."""
        if self._saving is None:
            return
        (step, sealed), self._saving = self._saving, None
        try:
            sealed.result()
            self.latest = step
        except Exception as error:
            if not _is_from_disk(error):
                raise
            self._give_up(step, error)

    def close(self) -> None:
        """Waits, and frees what the checkpoints hold."""
        try:
            self.wait()
        finally:
            self._worker.shutdown()
            self._manager.close()

    def _give_up(self, step: int, error: BaseException) -> None:
        last = "there is none yet" if self.latest is None else f"step {self.latest}"
        self._say(
            f"Checkpoint {step} cannot be written ({_reason(error)}); the run goes "
            f"on. The last good one: {last}."
        )
        for path in self._directory.glob(f"{step}*"):
            if path.name == str(step) or path.name.startswith(f"{step}.orbax"):
                shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(Exception):  # it still holds what has failed
            self._manager.close()
        self._manager = self._open()

    def _seal(self, step: int) -> None:
        self._manager.wait_until_finished()
        if not distributed.is_first():
            return
        path = self._directory / str(step)
        partial = path / f"{_MANIFEST}.partial"
        partial.write_text(json.dumps(_hashes(path), indent=1))
        partial.replace(path / _MANIFEST)

    def _last_good_step(
        self, say: Callable[[str], None], read_only: bool
    ) -> int | None:
        steps = sorted(
            (int(p.name) for p in self._directory.glob("*") if p.name.isdigit()),
            reverse=True,
        )
        for step in steps:
            path = self._directory / str(step)
            fault = _fault(path)
            if fault is None:
                return step
            say(f"Checkpoint {step} {fault}; trying the one before.")
            if not read_only:
                aside = path.with_name(f"{step}.damaged")
                shutil.rmtree(aside, ignore_errors=True)  # of an earlier time
                path.rename(aside)
        if steps:
            say("No checkpoint is whole: there is nothing to go on from.")
        return None


def _hashes(path: Path) -> dict[str, str]:
    files = sorted(p for p in path.rglob("*") if p.is_file())
    return {
        str(p.relative_to(path)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in files
        if not p.name.startswith(_MANIFEST)
    }


def _fault(path: Path) -> str | None:
    """Returns what is wrong with a checkpoint, or None."""
    try:
        expected = json.loads((path / _MANIFEST).read_text())
    except FileNotFoundError:
        return "was not finished"
    except ValueError:
        return "has a damaged manifest"
    found = _hashes(path)
    bad = sorted(name for name, digest in expected.items() if found.get(name) != digest)
    return f"is damaged ({bad[0]} does not match its sha256)" if bad else None


def _is_from_disk(error: BaseException | None) -> bool:
    """Whether an error comes from writing, which may go well another time."""
    signs = (
        "RESOURCE_EXHAUSTED",
        "No space left",
        "File too large",
        "quota",
        "OS error",
    )
    while error is not None:
        if isinstance(error, OSError) or any(sign in str(error) for sign in signs):
            return True
        error = error.__cause__ or error.__context__
    return False


def _reason(error: BaseException) -> str:
    found = re.search(r"([^:]+) \[os_error_code", str(error))
    first_line = (str(error).splitlines() or [type(error).__name__])[0]
    return found[1].strip() if found else first_line[:200]
