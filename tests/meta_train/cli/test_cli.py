"""Command line: user errors give a clear message and exit code 2, no traceback."""

import json
import os
from unittest import mock

import pytest

from lopt.cli.main import main
from lopt.registry import OPTIMIZERS
from meta_train.config.preset_configs import CONFIGS, compose
from meta_train.config.presets import PRESETS
from tasks.prepared import VERSIONS

QUICK = ("meta-train", "quadratic-schedule", "--num-outer-steps=20", "--wandb=off")


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["meta-train", "digits-mpl"], ["Did you mean 'digits-mlp'?"]),
        (["meta-train", "zzz"], ["Try general, demo, digits-mlp"]),
        ([*QUICK, "--num-outer-step=5"], ["--num-outer-steps"]),
        ([*QUICK, "--estimator", "PSE"], ["no estimator 'PSE'. Did you mean 'PES'?"]),
        ([*QUICK, "--tasks", "digit-mlp"], ["Did you mean 'digits-mlp'?"]),
        (
            [*QUICK, "--tasks", "quadratic", "influence-balancing"],
            ["`systems` must share one learned optimizer"],
        ),
        *[
            (
                ["meta-train", "influence-balancing", flag, value],
                [f"{flag} must be given systems that train", "--tasks digits-mlp"],
            )
            for flag, value in {
                "--optimizer": "PerParameterMLP",
                "--measure": "validation-loss",
                "--augment": "scaled-loss",
            }.items()
        ],
        (
            ["meta-train", "tables-mlp", "--systems.0.optimizer.width=9"],
            ["(width: 9 -> 8)", "--systems.0.optimizer"],
        ),
        ([*QUICK, "--seed=-1"], ["`seed` must lie between 0 and 2**32 - 1"]),
        (
            [*QUICK, "--estimator.truncation.length=7"],
            ["`horizon` must be a multiple of `length`", "Try horizon=98."],
        ),
        (
            [*QUICK, "--estimator.num-pairs=0"],
            ["`num_pairs` must be at least 1; got num_pairs=0."],
        ),
        ([*QUICK, "--estimator.num-pairs=2.5"], ["num-pairs"]),
        ([*QUICK, "--estimator.std=-1"], ["`std` must be positive", "got std=-1.0"]),
        (
            [*QUICK, "--run-dir=/proc/nowhere"],
            ["`--run-dir` must be a directory that can be written"],
        ),
        (["export", "nowhere", "--out=x"], ["nowhere", "must be the run directory"]),
        (["evaluate", "nowhere"], ["got 'nowhere'. Shipped: general-1"]),
        (["evaluate", "nowhere", "--suite=quik"], ["Did you mean 'quick'?"]),
        (["tasks", "digit-mlp"], ["Did you mean 'digits-mlp'?"]),
        (["tasks", "influence-balancing"], ["Try lopt estimators influence-balancing"]),
        (["data", "verify", "mnits"], ["got 'mnits'. Try mnist."]),
        (
            ["meta-train", "mnist-mlp", "--data-dir=nowhere"],
            ["'mnist' must be in nowhere", "lopt data prepare mnist", "digits-mlp"],
        ),
        (
            [
                "meta-train",
                "digits-mlp",
                "--tasks",
                "digits-masked",
                "--augment",
                "scaled-loss",
            ],
            ["--augment must be given tasks that theta has no part of"],
        ),
        (["data", "list", "--data-dir"], ["must be followed by a path"]),
        (
            ["meta-train", "digits-mlp", "--augment", "reparametrized"],
            ["Did you mean 'reparameterized'?"],
        ),
        (
            ["meta-train", "quadratic-schedule", "--measure", "validation-error"],
            ["`measure` must be a loss for a task that has no classes"],
        ),
        (
            ["meta-train", "digits-mlp", "--systems.0.task.dataset=no.csv"],
            ["no.csv must be a file that can be read"],
        ),
        (["estimators", "digits-mpl"], ["Did you mean 'digits-mlp'?"]),
        (
            ["estimators", "quadratic-schedule", "--estimators", "PSE"],
            ["no estimator 'PSE'. Did you mean 'PES'?"],
        ),
        (
            ["estimators", "quadratic-schedule", "--lengths", "7"],
            ["`horizon` must be a multiple of `length`", "Try horizon=98."],
        ),
        (
            ["estimators", "quadratic-schedule", "--population", "0"],
            ["`population` must be at least 1"],
        ),
        (
            ["estimators", "quadratic-schedule", "--out=/proc/nowhere"],
            ["`--out` must be a directory that can be written"],
        ),
        (
            [
                *("meta-train", "digits-mlp", "--run-dir=run", "--wandb=off"),
                *("--estimator", "RTRL", "--estimator.num-episodes=10000000"),
            ],
            ["RTRL on InnerTraining carries", "--estimator PES, which carries"],
        ),
    ],
)
def test_mistakes(arguments, messages, tmp_path, capsys, monkeypatch):
    # In this process: each further one would import everything again.
    monkeypatch.chdir(tmp_path)
    with mock.patch.dict(os.environ, COLUMNS="200"):
        assert main(arguments) == 2
    error = capsys.readouterr().err
    for message in messages:
        assert message in error
    assert "Traceback" not in error
    assert not list(tmp_path.iterdir())


def test_an_optimizer_by_name_has_its_own_defaults():
    for name, kind in OPTIMIZERS.items():
        config = compose(CONFIGS["digits-mlp"], optimizer=name)
        assert [system.optimizer for system in config.systems] == [kind()]


def test_presets_name_the_data_to_prepare():
    assert PRESETS.keys() == CONFIGS.keys()
    for name, config in CONFIGS.items():
        tasks = [getattr(system, "task", None) for system in config.systems]
        used = {getattr(task, "dataset", None) for task in tasks}
        assert used & VERSIONS.keys() == {PRESETS[name].dataset} - {None}, name


def test_estimators_are_compared_in_a_table_a_figure_and_numbers(
    lopt_command, tmp_path
):
    result = lopt_command(
        *("estimators", "quadratic-schedule", "--lengths", "50", "10", "--seconds=0.2"),
        *("--estimators", "PES", "TruncatedBackprop", "--out=out"),
    )
    assert result.returncode == 0, result.stderr
    for name in ("PES", "TruncatedBackprop", "FullBackprop", "SNR/s", "variance.png"):
        assert name in result.stdout
    content = json.loads((tmp_path / "out" / "estimators.json").read_text())
    rows = content["estimators"]
    speeds = [row["signal_per_second"] for row in rows]
    assert speeds == sorted(speeds, reverse=True)
    found = {(row["estimator"]["type"], row["num_windows"]) for row in rows}
    windows = {("PES", 10), ("PES", 2), ("FullBackprop", 1)}
    assert found == windows | {("TruncatedBackprop", 10), ("TruncatedBackprop", 2)}
    assert (tmp_path / "out" / "variance.png").stat().st_size > 10_000


def test_skipped_measurements_are_named(lopt_command):
    result = lopt_command(
        *("estimators", "influence-balancing", "--minutes=0.001", "--seconds=0.1"),
        "--lengths=100",
    )
    assert result.returncode == 0, result.stderr
    assert "No time left for NoiseReuseES (K=100), TruncatedBackprop" in result.stdout


def test_the_final_loss_can_be_the_objective(lopt_command, tmp_path):
    result = lopt_command(*QUICK, "--run-dir=run", "--objective=final")
    assert result.returncode == 0, result.stderr
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["objective"] == "final"
    other = lopt_command(*QUICK, "--run-dir=run", "--objective=mean")
    assert other.returncode == 2
    assert "objective" in other.stderr


def test_tasks_lists_everything(lopt_command):
    result = lopt_command("tasks")
    assert result.returncode == 0
    for name in ("digits-mlp", "influence-balancing", "PerParameterMLP", "PES"):
        assert name in result.stdout


def test_parts_are_chosen_by_name_and_several_tasks_train_together(
    lopt_command, tmp_path
):
    result = lopt_command(
        *QUICK,
        "--run-dir=run",
        "--estimator",
        "TruncatedES",
        "--tasks",
        "quadratic",
        "toy-regression",
        "--estimator.std=0.2",
    )
    assert result.returncode == 0, result.stderr
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["estimator"]["type"] == "TruncatedES"
    assert config["estimator"]["std"] == 0.2
    assert config["estimator"]["num_pairs"] == 32
    tasks = [system["task"]["type"] for system in config["systems"]]
    assert tasks == ["RandomQuadratic", "ToyRegression"]
    last = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1]
    assert {"loss", "loss/quadratic", "loss/toy-regression"} <= set(json.loads(last))
    exported = lopt_command("export", "run", "--out=again.safetensors")
    assert exported.returncode == 0, exported.stderr


def test_preset_help_describes_its_fields(lopt_command):
    result = lopt_command("meta-train", "digits-mlp", "--help")
    assert result.returncode == 0
    for text in ("--run-dir", "--estimator.truncation.length", "Units in each hidden"):
        assert text in result.stdout
    assert "noqa" not in result.stdout


def test_a_key_that_wandb_refuses_does_not_stop_the_run(lopt_command):
    result = lopt_command(*QUICK[:-1], "--run-dir=run", WANDB_API_KEY="abc")
    assert result.returncode == 0, result.stderr
    assert "logging offline" in result.stdout


def test_an_offline_wandb_run_asks_for_nothing(lopt_command, tmp_path):
    arguments = [*QUICK[:-1], "--run-dir=run"]
    result = lopt_command(*arguments, WANDB_API_KEY="", HOME=str(tmp_path / "home"))
    assert result.returncode == 0, result.stderr
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*"))


def test_a_system_without_an_optimizer_trains_but_has_nothing_to_export(
    lopt_command, tmp_path
):
    trained = lopt_command(
        "meta-train",
        "influence-balancing",
        "--num-outer-steps=5",
        "--wandb=off",
        "--run-dir=run",
    )
    assert trained.returncode == 0, trained.stderr
    last = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["step"] == 5
    refused = lopt_command("export", "run", "--out=x.safetensors")
    assert refused.returncode == 2
    assert "there is nothing to export" in refused.stderr


def test_a_task_is_shown_with_its_parameters_and_its_curve(lopt_command, tmp_path):
    result = lopt_command("tasks", "diabetes-linear", "--num-steps=20", "--out=out")
    assert result.returncode == 0, result.stderr
    for text in ("params/Dense_0/kernel", "10 x 1", "11", "best learning rate"):
        assert text in result.stdout
    assert (tmp_path / "out" / "diabetes-linear.png").stat().st_size > 5_000


def test_problems_can_differ_from_episode_to_episode(lopt_command, tmp_path):
    result = lopt_command(
        *("meta-train", "quadratic-schedule", "--run-dir=run", "--num-outer-steps=2"),
        *("--wandb=off", "--tasks", "diabetes-linear", "--measure", "validation-loss"),
        *("--augment", "reparameterized", "scaled-loss"),
    )
    assert result.returncode == 0, result.stderr
    (system,) = json.loads((tmp_path / "run" / "config.json").read_text())["systems"]
    assert system["measure"] == "validation-loss"
    assert system["task"]["type"] == "ScaledLoss"
    assert system["task"]["task"]["type"] == "Reparameterized"
    exported = lopt_command("export", "run", "--out=again.safetensors")
    assert exported.returncode == 0, exported.stderr
