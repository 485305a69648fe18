"""Checkpoints: messages of failed writes."""

import sys
from types import SimpleNamespace

from meta_train.runtime.checkpoint import Checkpoints


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
