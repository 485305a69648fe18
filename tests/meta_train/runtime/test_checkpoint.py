"""Checkpoints: damage falls back to the checkpoint before; failed writes."""

import dataclasses
import os
import shutil
import sys
from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from meta_train.config.preset_configs import CONFIGS
from meta_train.runtime.checkpoint import Checkpoints


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory):
    """Directory with valid checkpoints at the steps 3 and 7."""
    folder = tmp_path_factory.mktemp("run")
    config = dataclasses.replace(CONFIGS["quadratic-schedule"], run_dir=folder)
    trainer = config.make_trainer()
    state = trainer.init(trainer.load(), 0)
    checkpoints = Checkpoints(folder / "checkpoints", print)
    for step in (3, 7):
        checkpoints.save_last(state.replace(step=jnp.int32(step)))
    checkpoints.close()
    return folder / "checkpoints"


def add_a_link(newest):
    (newest / "link").symlink_to("/dev/zero")


def replace_a_part_by_a_link(newest):
    part = newest / "_CHECKPOINT_METADATA"
    part.rename(newest.parent / "elsewhere")
    part.symlink_to("../elsewhere")


def write_an_odd_manifest(newest):
    (newest / "sha256.json").write_text('{"a": ["b"]}')


def write_a_manifest_of_other_bytes(newest):
    (newest / "sha256.json").write_bytes(b"\xff")


def replace_the_manifest_by_a_pipe(newest):
    (newest / "sha256.json").unlink()
    os.mkfifo(newest / "sha256.json")


def replace_the_metadata_by_a_pipe(newest):
    (newest / "_CHECKPOINT_METADATA").unlink()
    os.mkfifo(newest / "_CHECKPOINT_METADATA")


def replace_by_a_file(newest):
    shutil.rmtree(newest)
    newest.write_text("x")


def leave_odd_names(newest):
    shutil.rmtree(newest)
    for name in ("0100", "²", "-1", "99999999999", "8.damaged"):
        (newest.parent / name).mkdir()


DAMAGES = (
    *(add_a_link, replace_a_part_by_a_link, write_an_odd_manifest, replace_by_a_file),
    *(
        replace_the_metadata_by_a_pipe,
        write_a_manifest_of_other_bytes,
        replace_the_manifest_by_a_pipe,
        leave_odd_names,
    ),
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_falls_back_to_the_checkpoint_before(damage, two_checkpoints, tmp_path):
    folder = tmp_path / "checkpoints"
    shutil.copytree(two_checkpoints, folder)
    damage(folder / "7")
    for read_only in (True, False):
        checkpoints = Checkpoints(folder, lambda text: None, read_only=read_only)
        checkpoints.close()
        assert checkpoints.latest == 3


@pytest.mark.parametrize("name", ["3", "0100"])
def test_a_pipe_in_another_checkpoint_does_not_block(name, two_checkpoints, tmp_path):
    folder = tmp_path / "checkpoints"
    shutil.copytree(two_checkpoints, folder)
    (folder / name).mkdir(exist_ok=True)
    replace_part = folder / name / "_CHECKPOINT_METADATA"
    replace_part.unlink(missing_ok=True)
    os.mkfifo(replace_part)
    for read_only in (True, False):
        checkpoints = Checkpoints(folder, lambda text: None, read_only=read_only)
        checkpoints.close()
        assert checkpoints.latest == 7


def test_without_damage_the_newest_is_used(two_checkpoints):
    checkpoints = Checkpoints(two_checkpoints, print, read_only=True)
    checkpoints.close()
    assert checkpoints.latest == 7


def test_writes_that_end_after_their_checkpoint_was_abandoned_are_not_reported(
    tmp_path, monkeypatch
):
    reported = []
    hook = reported.append
    monkeypatch.setattr(sys, "unraisablehook", hook)
    checkpoints = Checkpoints(tmp_path / "checkpoints", print)
    late = SimpleNamespace(exc_value=RuntimeError("Event loop is closed"))
    other = SimpleNamespace(exc_value=RuntimeError("unexpected"))
    for found in (late, other):
        sys.unraisablehook(found)
    checkpoints.close()
    assert reported == [other]
    assert sys.unraisablehook is hook
