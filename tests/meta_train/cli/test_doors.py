"""Runs that are extended, start from a file, or need no preset; lists and overlays."""

import json
from pathlib import Path

import numpy as np
import pytest

import lopt
from lopt.cli.main import main
from tasks import datasets

QUICK = [
    *("meta-train", "quadratic-schedule", "--wandb=off", "--estimator.num-pairs=4"),
    *("--log-every-steps=5", "--evaluate-every-steps=10", "--num-evaluation-runs=1"),
    *("--estimator.truncation.horizon=20",),
]
TASKS = [
    *("meta-train", "--tasks", "quadratic", *QUICK[2:]),
    "--estimator.truncation.min-horizon=20",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Directory with a finished run of 20 updates."""
    folder = tmp_path_factory.mktemp("doors")
    assert main([*QUICK, "--num-outer-steps=20", f"--run-dir={folder / 'short'}"]) == 0
    return folder


@pytest.fixture(autouse=True)
def _in_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)


def theta_of(run):
    return np.asarray(lopt.load_theta(f"{run}/optimizer.safetensors")[1]).tobytes()


def metrics_of(run):
    text = Path(run, "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    return [{k: v for k, v in x.items() if "per_second" not in k} for x in lines]


def history_of(run):
    return json.loads(Path(run, "provenance.json").read_text())["history"]


def test_an_extended_run_equals_a_longer_one(folder, capsys):
    assert main([*QUICK, "--num-outer-steps=20", "--run-dir=first"]) == 0
    assert main(["meta-train", "--run-dir=first", "--extend", "15"]) == 0
    assert main([*QUICK, "--num-outer-steps=35", "--run-dir=long"]) == 0
    assert theta_of("first") == theta_of("long")
    # Means over updates depend on how many of them ran in one call, by rounding.
    for one, other in zip(metrics_of("first"), metrics_of("long"), strict=True):
        assert one == pytest.approx(other, rel=1e-5)
    assert history_of("first") == ["extended to 35 outer updates"]
    assert history_of("long") == []
    # Without --extend, the recorded configuration is resumed.
    assert main(["meta-train", "--run-dir=first"]) == 0
    assert "35/35" in capsys.readouterr().out


def test_a_run_starts_from_an_exported_file(capsys):
    start = "short/optimizer.safetensors"
    run = [*QUICK, f"--init={start}", "--run-dir=started"]
    assert main([*run, "--num-outer-steps=5"]) == 0
    (event,) = history_of("started")
    assert event.startswith(f"initialized from {start} (SHA-256 ")
    first = metrics_of("started")[0]["meta_loss"]
    assert first == metrics_of("short")[-1]["meta_loss"]
    assert lopt.read_card("started/optimizer.safetensors")["init"] == start


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (
            [*QUICK, "--init=general-1"],
            ["ScheduledSGD -> LearnedMuon", "--optimizer LearnedMuon"],
        ),
        ([*QUICK, "--init=general-7"], ["Did you mean 'general-1'?"]),
        (
            [
                *(*TASKS[:3], "--optimizer", "LearnedSGD", *TASKS[3:]),
                *("--systems.0.optimizer.schedule=linear", "--init=sgd.safetensors"),
            ],
            ["schedule: linear -> constant"],
        ),
        (["meta-train", "influence-balancing", "--init=general-1"], ["InfluenceBal"]),
        (["meta-train", "--run-dir=short", "--extend=0"], ["at least 1; got 0"]),
        (["meta-train", "--run-dir=absent", "--extend=5"], ["must be the run dir"]),
        ([*QUICK, "--extend=5"], ["takes only --run-dir", "--run-dir DIR --extend 5"]),
        (["evaluate", "short", "--tasks", "digit-mlp"], ["Did you mean 'digits-mlp'?"]),
        (["evaluate", "short", "--tasks", "swimmer"], ["by an optimizer alone"]),
        (["plot"], ["must be given a run directory"]),
        (["plot", "short", "absent"], ["must be the run directory"]),
        (["runs", "absent"], ["must be a directory with runs"]),
    ],
)
def test_mistakes(arguments, messages, capsys, key):
    sgd = lopt.LearnedSGD(schedule="constant")
    lopt.save("sgd.safetensors", sgd, sgd.init_theta(key))
    assert main([*arguments]) == 2
    error = capsys.readouterr().err
    for message in messages:
        assert message in error
    assert "Traceback" not in error


def test_a_run_whose_data_changed_is_refused(tmp_path, capsys):
    table = tmp_path / "table.csv"
    table.write_text("".join(f"{i},{i % 7},{i % 3}\n" for i in range(100)))
    run = [*TASKS, f"--run-dir={tmp_path / 'run'}", "--num-outer-steps=5"]
    run[2] = "digits-logistic"
    data = f"--systems.0.task.dataset={table}"
    assert main([*run, data, "--systems.0.task.batch-size=8"]) == 0
    table.write_text(table.read_text().replace("5,", "6,"))
    datasets._load.cache_clear()  # as in another process
    assert main(["meta-train", f"--run-dir={tmp_path / 'run'}", "--extend=5"]) == 2
    assert "the data of a run must not change" in capsys.readouterr().err


def test_seeds_share_a_configuration_and_a_figure(capsys):
    assert (
        main([*TASKS, "--num-outer-steps=5", "--seeds", "1", "2", "--run-dir=s"]) == 0
    )
    for seed in (1, 2):
        assert lopt.read_card(f"s/seed-{seed}/optimizer.safetensors")["seed"] == seed
    assert theta_of("s/seed-1") != theta_of("s/seed-2")
    assert "Figure: s/seeds.png" in capsys.readouterr().out


def test_runs_are_listed_and_drawn_together(capsys):
    assert main(["runs", ".", "--json"]) == 0
    rows = {row["run"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["short"]["state"] == "finished"
    assert rows["short"]["steps"] == "20/20"
    assert main(["plot", "short", "short"]) == 0
    assert "Figure: short/runs.png" in capsys.readouterr().out


def test_named_tasks_are_evaluated(capsys, monkeypatch):
    quick = ("--num-seeds=1", "--num-steps=8", "--baselines=adam", "--out=e")
    assert main(["evaluate", "short", "--tasks", "quadratic", *quick]) == 0
    (case,) = json.loads(Path("e/results.json").read_text())["cases"]
    assert (case["name"], case["num_steps"]) == ("quadratic", 8)
