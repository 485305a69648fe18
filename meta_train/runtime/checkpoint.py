"""Orbax checkpoints with a SHA-256 manifest for integrity checks."""

import contextlib
import errno
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import jax
import orbax.checkpoint as ocp

from lopt.errors import UserError
from meta_train.devices import distributed
from meta_train.outer.outer_state import OuterState
from meta_train.runtime.integrity import (
    MANIFEST,
    UNFINISHED,
    fault_of,
    has_special,
    hashes,
    set_aside,
)

_OVERHEAD = 4_096  # bytes on disk per array, for metadata
_STEP = re.compile("0|[1-9][0-9]{0,9}")
_NUM_KEPT = 3
_ITEM = "default"  # directory of the arrays in a checkpoint of Orbax
_ASIDE = (".damaged", ".unfinished")


class Checkpoints:
    """Checkpoint manager of one run.

    A checkpoint is valid once its SHA-256 manifest exists. A background thread writes
    the manifest after Orbax has committed the checkpoint. The latest three checkpoints
    are kept, in case the newest is damaged.

    Attributes:
        latest: Outer step of the latest valid checkpoint; `None` if there is none.
    """

    def __init__(
        self, directory: Path, say: Callable[[str], None], *, read_only: bool = False
    ):
        """Open a checkpoint directory and find the latest valid checkpoint.

        Collective over processes: process 0 verifies the checkpoints.

        Args:
            directory: Directory of the checkpoints, created unless `read_only`.
            say: Callback for warnings about damaged checkpoints and failed writes.
            read_only: Leave the directory unchanged, since another process may be
                writing to it. By default, damaged checkpoints are renamed to
                ``STEP.damaged``, unfinished ones to ``STEP.unfinished``, and old
                checkpoints are deleted.
        """
        self._directory, self._say = directory.absolute(), say
        self._read_only = read_only
        self._has_failed = False
        latest = None
        if distributed.is_first():
            if not read_only:
                self._directory.mkdir(parents=True, exist_ok=True)
                self._set_special_aside()
            latest = self._last_good_step(say, read_only)
        self.latest: int | None = json.loads(
            distributed.all_gather_text(json.dumps(latest))[0]
        )
        # Orbax logs warnings about options chosen on purpose, and long traces of
        # failures that `_give_up` reports in one line.
        for name in ("absl", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._previous_hook = sys.unraisablehook
        sys.unraisablehook = self._drop_late_writes
        # Orbax's manager opens the metadata of all checkpoints, also of damaged ones,
        # and blocks if one is a pipe. Reading the latest needs no manager.
        self._manager: Any = None if read_only else self._open()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saving: tuple[int, Future[None]] | None = None

    def _open(self) -> ocp.CheckpointManager:
        return ocp.CheckpointManager(
            self._directory,
            item_handlers=ocp.StandardCheckpointHandler(),
            options=ocp.CheckpointManagerOptions(
                max_to_keep=_NUM_KEPT, cleanup_tmp_directories=True, create=False
            ),
        )

    def save(self, state: OuterState) -> None:
        """Save `state` asynchronously.

        The arrays may be donated as soon as this method returns. A failed write is
        reported as a warning and does not raise.
        """
        self.wait()
        step = int(state.step)
        if step == self.latest:
            return
        try:
            self._check_free_space(state)
            self._manager.save(step, args=ocp.args.StandardSave(state))
        except OSError as error:
            self._give_up(step, error)
        else:
            self._saving = step, self._worker.submit(self._seal, step)

    def check_restart(self, *, asked: bool) -> None:
        """Validate that a run without a valid checkpoint has no damaged ones.

        Args:
            asked: Whether the user asked for a restart from step 0.

        Raises:
            UserError: If all checkpoints are damaged and no restart was asked for.
        """
        damaged = sorted(path.name for path in self._directory.glob("*.damaged"))
        if self.latest is None and damaged and not asked:
            raise UserError(
                f"a checkpoint in {self._directory} must be valid to resume from; all "
                f"are damaged: {', '.join(damaged)}. Try --restart to start from step "
                "0, or another --run-dir."
            )

    def save_last(self, state: OuterState) -> None:
        """Save the final `state` synchronously.

        Raises:
            UserError: If the write fails, since no later checkpoint will replace it.
        """
        self.save(state)
        self.wait()
        if self.latest != int(state.step):
            raise UserError(
                f"the last checkpoint must be written to {self._directory}; it cannot "
                "be. Try to make room, and the same command to resume."
            )

    def _check_free_space(self, state: OuterState) -> None:
        """Raise an `OSError` if the disk has no room for a checkpoint of `state`.

        Orbax prints a trace for each array that it cannot write.
        """
        leaves = jax.tree.leaves(state)
        needed = sum(x.nbytes for x in leaves) + _OVERHEAD * len(leaves)
        if shutil.disk_usage(self._directory).free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def population_size(self) -> int:
        """Read the population size of the latest checkpoint from its metadata."""
        return jax.tree.leaves(self.shapes("populations", None))[0].shape[0]

    def shapes(self, field: str, sharding: jax.sharding.Sharding | None) -> Any:
        """Read the shapes of a field of the latest checkpoint from its metadata.

        Args:
            field: Field of `OuterState`.
            sharding: Sharding of the result, a pytree of `jax.ShapeDtypeStruct`.
        """
        path = self._directory / str(self.latest) / _ITEM
        with ocp.StandardCheckpointer() as checkpointer:
            tree: Any = checkpointer.metadata(path).item_metadata.tree
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            tree[field],
            is_leaf=lambda x: hasattr(x, "shape"),
        )

    def restore(self, template: OuterState) -> OuterState:
        """Restore the latest checkpoint.

        Args:
            template: State with the shapes, dtypes and shardings to restore to. Leaves
                may be arrays or `jax.ShapeDtypeStruct`.

        Raises:
            UserError: If the checkpoint does not match the structure of `template`.
        """
        target = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
            template,
        )
        path = self._directory / str(self.latest) / _ITEM
        try:
            with ocp.StandardCheckpointer() as checkpointer:
                return cast(OuterState, checkpointer.restore(path, target))
        # The hashes of all files match, so a `ValueError` is a structure mismatch.
        except ValueError as error:
            if distributed.is_from_outside(error):
                raise
            raise UserError(
                f"checkpoint {self.latest} in {self._directory} must have the "
                "structure that this version of lopt writes; it has another. Try the "
                "version that wrote it, or another --run-dir."
            ) from error

    def wait(self) -> None:
        """Block until the pending checkpoint is written or has failed."""
        if self._saving is None:
            return
        (step, sealed), self._saving = self._saving, None
        try:
            sealed.result()
            self.latest = step
            if self._has_failed:
                self._say(f"Checkpoint {step} was written; the disk works again.")
            self._has_failed = False
        except Exception as error:
            if not _is_from_disk(error):
                raise
            self._give_up(step, error)

    def close(self) -> None:
        """Wait for the pending checkpoint and release all resources."""
        try:
            self.wait()
        finally:
            self._worker.shutdown()
            if self._manager is not None:
                self._manager.close()
            sys.unraisablehook = self._previous_hook

    def _drop_late_writes(self, found: Any) -> None:
        """Report an exception in a callback, except for those of abandoned writes.

        If one array cannot be written, Orbax closes the event loop of all. The callback
        of each array whose write ends later then fails, with a trace.
        """
        if "Event loop is closed" not in str(found.exc_value):
            self._previous_hook(found)

    def _give_up(self, step: int, error: BaseException) -> None:
        if not self._has_failed:
            last = "there is none yet" if self.latest is None else f"step {self.latest}"
            self._say(
                f"Checkpoint {step} cannot be written ({_reason(error)}); the run "
                f"continues and retries. Last good checkpoint: {last}."
            )
        self._has_failed = True
        for path in self._directory.glob(f"{step}*"):
            if path.name == str(step) or path.name.startswith(f"{step}.orbax"):
                shutil.rmtree(path, ignore_errors=True)
        # Replace the manager: the old one still holds the failed write, whose error
        # `close` may raise again.
        with contextlib.suppress(Exception):
            self._manager.close()
        self._manager = self._open()

    def _seal(self, step: int) -> None:
        self._manager.wait_until_finished()
        if not distributed.is_first():
            return
        path = self._directory / str(step)
        partial = path / f"{MANIFEST}.partial"
        partial.write_text(json.dumps(hashes(path), indent=1))
        partial.replace(path / MANIFEST)

    def _set_special_aside(self) -> None:
        """Rename checkpoints that contain links, pipes or devices."""
        for path in sorted(self._directory.iterdir()):
            if has_special(path) and not path.name.endswith(_ASIDE):
                self._say(f"Checkpoint {path.name} has a link, pipe or device.")
                set_aside(path, "damaged")

    def _last_good_step(
        self, say: Callable[[str], None], read_only: bool
    ) -> int | None:
        steps = sorted(
            (int(p.name) for p in self._directory.glob("*") if _STEP.fullmatch(p.name)),
            reverse=True,
        )
        for step in steps:
            path = self._directory / str(step)
            fault = fault_of(path)
            if fault is None:
                return step
            say(f"Checkpoint {step} {fault}; trying the one before.")
            if not read_only:
                # Each save waits for the one before: only the newest is unfinished.
                is_unfinished = fault == UNFINISHED and step == steps[0]
                set_aside(path, "unfinished" if is_unfinished else "damaged")
        return None


def _is_from_disk(error: BaseException | None) -> bool:
    """Check whether an error or one of its causes is a file-system error.

    Such errors may be transient. Not all of them are raised as `OSError`, so the
    messages are searched as well.
    """
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
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    found = re.search(r"([^:]+) \[os_error_code", str(error))
    first_line = (str(error).splitlines() or [type(error).__name__])[0]
    return found[1].strip() if found else first_line[:200]
