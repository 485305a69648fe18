"""The claim of the README's first command."""

import json

import pytest


@pytest.mark.slow
def test_the_demo_beats_tuned_adam_on_unseen_seeds(lopt_command, tmp_path):
    trained = lopt_command(
        "meta-train", "digits-mlp", "--run-dir=run", "--wandb=off", timeout=1200
    )
    assert trained.returncode == 0, trained.stderr
    evaluated = lopt_command("evaluate", "run", "--out=out", timeout=1200)
    assert evaluated.returncode == 0, evaluated.stderr
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    case = results["cases"][0]
    assert (case["name"], case["reason"]) == ("digits-mlp", "trained on")
    assert results["how"]["num_seeds"] == 20
    demo = case["methods"]["run"]
    assert demo["mean_loss_ratio"]["value"] <= 0.9
    assert demo["final_loss_ratio"]["high"] < 1
    assert demo["speed_up"]["low"] > 1
