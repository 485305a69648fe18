"""Claim of the README demo: untuned, it beats tuned Adam on held-out tasks."""

import json

import pytest


@pytest.mark.slow
def test_the_demo_is_ahead_of_tuned_adam_on_held_out_tasks(lopt_command, tmp_path):
    trained = lopt_command(
        "meta-train", "demo", "--run-dir=run", "--wandb=off", timeout=1200
    )
    assert trained.returncode == 0, trained.stderr
    evaluated = lopt_command("evaluate", "run", "general-1", "--out=out", timeout=1800)
    assert evaluated.returncode == 0, evaluated.stderr
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert len(results["how"]["judged_on"]) == 5
    for name in ("run", "general-1"):
        summary = results["summaries"][name]
        assert summary["below_reference"] >= 4
        assert summary["diverged"] == 0
