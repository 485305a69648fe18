"""Complete runs that are started, killed, damaged and resumed."""

import dataclasses
import json
import re
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import lopt
from lopt.errors import UserError
from meta_train.config.config_file import read_config, write_config
from meta_train.config.preset_configs import CONFIGS
from meta_train.core.truncation import Truncation
from meta_train.estimators import PES
from meta_train.outer.trainer import Trainer
from meta_train.runtime.checkpoint import Checkpoints
from meta_train.runtime.run import meta_train, resume
from meta_train.runtime.run_directory import lock_run_directory
from tests.conftest import command_environment, wait_for

RUN = [
    "meta-train",
    "quadratic-schedule",
    "--num-outer-steps=3000",
    "--checkpoint-every-steps=500",
    "--estimator.num-pairs=64",
    "--log-every-steps=100",
    "--wandb=off",
]


def theta_bytes(run_dir):
    _, theta = lopt.load_theta(run_dir / "optimizer.safetensors")
    return np.asarray(theta).tobytes()


def metric_lines(run_dir):
    text = (run_dir / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def sealed_steps(run_dir):
    manifests = (run_dir / "checkpoints").glob("*/sha256.json")
    return sorted(int(m.parent.name) for m in manifests if m.parent.name.isdigit())


def start_and_signal(tmp_path, run_dir, number, at_step):
    """Start the run, signal it once it has a checkpoint, and wait until it exits."""
    # `RUN` is long enough that the signal arrives during training.
    process = subprocess.Popen(
        [sys.executable, "-m", "lopt", *RUN, "--run-dir", str(run_dir)],
        cwd=tmp_path,
        env=command_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not any(step >= at_step for step in sealed_steps(run_dir)):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    subprocess.run(
        [sys.executable, "-m", "lopt", *RUN, "--run-dir", str(directory / "run")],
        cwd=directory,
        env=command_environment(),
        check=True,
    )
    return directory / "run"


def test_run_directory_contains_the_documented_files(whole_run):
    names = {path.name for path in whole_run.iterdir()}
    assert names == {
        "config.json",
        "metrics.jsonl",
        "provenance.json",
        "checkpoints",
        "optimizer.safetensors",
        "progress.png",
        "progress.svg",
    }
    lines = metric_lines(whole_run)
    assert [line["step"] for line in lines] == sorted(
        {0, *range(100, 3001, 100), *range(250, 3001, 250)}
    )
    assert {
        "loss",
        "grad_norm",
        "accumulator_norm",
        "signal_to_noise",
        "num_nonfinite",
        "inner_steps_per_second",
    } <= set(lines[1])
    assert "meta_loss" in lines[0]  # of the untrained theta
    assert "meta_loss" in next(line for line in lines if line["step"] == 250)
    card = lopt.read_card(whole_run / "optimizer.safetensors")
    assert card["num_outer_steps"] == 3000
    assert card["horizons"] == [100, 100]


def test_a_killed_run_resumes_to_bitwise_the_same_theta(
    whole_run, tmp_path, lopt_command
):
    run_dir = tmp_path / "run"
    code, _ = start_and_signal(tmp_path, run_dir, signal.SIGKILL, at_step=1000)
    assert code == -signal.SIGKILL
    assert not (run_dir / "optimizer.safetensors").exists()
    resumed = lopt_command(*RUN, "--run-dir", run_dir)
    assert resumed.returncode == 0, resumed.stderr
    assert "Resumed from the checkpoint at step" in resumed.stdout
    assert theta_bytes(run_dir) == theta_bytes(whole_run)
    keep = lambda lines: [(x["step"], x["loss"], x["grad_norm"]) for x in lines[1:]]
    np.testing.assert_allclose(
        keep(metric_lines(run_dir)), keep(metric_lines(whole_run)), rtol=1e-5
    )


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_a_request_to_stop_saves_and_exits_cleanly(
    number, whole_run, tmp_path, lopt_command
):
    run_dir = tmp_path / "run"
    code, output = start_and_signal(tmp_path, run_dir, number, at_step=500)
    assert code == 0, output
    name = "Ctrl-C" if number == signal.SIGINT else number.name
    assert f"Stopped by {name} and saved at step" in output
    stopped_at = metric_lines(run_dir)[-1]["step"]
    assert sealed_steps(run_dir)[-1] == stopped_at < 3000
    assert lopt_command(*RUN, "--run-dir", run_dir).returncode == 0
    assert theta_bytes(run_dir) == theta_bytes(whole_run)


def test_a_flipped_byte_falls_back_to_the_checkpoint_before(
    whole_run, tmp_path, lopt_command
):
    run_dir = tmp_path / "run"
    subprocess.run(["cp", "-r", whole_run, run_dir], check=True)
    newest = run_dir / "checkpoints" / str(sealed_steps(run_dir)[-1])
    victim = max(newest.rglob("*"), key=lambda p: p.is_file() and p.stat().st_size)
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    resumed = lopt_command(*RUN, "--run-dir", run_dir)
    assert resumed.returncode == 0, resumed.stderr
    assert "Checkpoint 3000 is damaged" in resumed.stdout
    assert "Resumed from the checkpoint at step 2500" in resumed.stdout
    assert (run_dir / "checkpoints" / "3000.damaged").exists()
    assert theta_bytes(run_dir) == theta_bytes(whole_run)


def test_a_run_without_a_valid_checkpoint_restarts_only_on_request(
    whole_run, tmp_path, lopt_command
):
    run_dir = tmp_path / "run"
    subprocess.run(["cp", "-r", whole_run, run_dir], check=True)
    before = (run_dir / "metrics.jsonl").read_bytes()
    faults = {
        "2000": lambda path: path.write_text('{"_METADATA": 1}'),
        "2500": lambda path: path.write_text("[" * 100_000),
        "3000": lambda path: path.write_text("[]"),
    }
    for step, damage in faults.items():
        damage(run_dir / "checkpoints" / step / "sha256.json")
    for name in ("0100", "²", "7"):  # odd names, and a file in place of a directory
        (run_dir / "checkpoints" / name).write_text("")
    for _ in range(2):
        refused = lopt_command(*RUN, "--run-dir", run_dir)
        assert refused.returncode == 2
        assert "Try --restart to start from step 0" in refused.stderr
        assert "Traceback" not in refused.stderr
    assert (run_dir / "metrics.jsonl").read_bytes() == before
    restarted = lopt_command(*RUN, "--run-dir", run_dir, "--restart")
    assert restarted.returncode == 0, restarted.stderr
    assert theta_bytes(run_dir) == theta_bytes(whole_run)


def test_only_the_newest_checkpoint_can_be_unfinished(whole_run, tmp_path):
    run_dir = tmp_path / "run"
    subprocess.run(["cp", "-r", whole_run, run_dir], check=True)
    for manifest in (run_dir / "checkpoints").glob("*/sha256.json"):
        manifest.unlink()
    checkpoints = Checkpoints(run_dir / "checkpoints", print)
    assert checkpoints.latest is None
    with pytest.raises(UserError, match=r"all are damaged: 2000.damaged, 2500.damaged"):
        checkpoints.check_restart(asked=False)
    checkpoints.close()


def test_a_lost_configuration_is_written_again(whole_run, tmp_path, lopt_command):
    run_dir = tmp_path / "run"
    subprocess.run(["cp", "-r", whole_run, run_dir], check=True)
    config = (run_dir / "config.json").read_bytes()
    (run_dir / "config.json").write_bytes(config[:100])
    resumed = lopt_command(*RUN, "--run-dir", run_dir)
    assert resumed.returncode == 0, resumed.stderr
    assert "is missing or damaged; it is written again" in resumed.stdout
    again = json.loads((run_dir / "config.json").read_bytes())
    assert {**again, "run_dir": ""} == {**json.loads(config), "run_dir": ""}


def test_resuming_writes_no_configuration_that_is_there(tmp_path, monkeypatch):
    config = dataclasses.replace(CONFIGS["quadratic-schedule"], run_dir=tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n')
    write_config(config)

    def fail(path, content):
        raise OSError("the disk is full")

    monkeypatch.setattr("meta_train.config.config_file.write_atomically", fail)
    write_config(config)
    assert read_config(tmp_path) == config


@pytest.mark.parametrize("output", ["| head -c 20", "> /dev/full", ">&-"])
def test_broken_standard_output_does_not_end_a_run(output, tmp_path):
    command = f"{sys.executable} -m lopt {' '.join(RUN)} --num-outer-steps=300"
    command += " --evaluate-every-steps=0 --run-dir=run"
    # With `/dev/full`, the disk of a log file is full.
    script = f"{command} {output}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=command_environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    num_reports = 0 if output == ">&-" else 1  # It was closed on purpose.
    assert done.stderr.count("standard output cannot be written") == num_reports
    assert "Traceback" not in done.stderr
    assert (tmp_path / "run" / "optimizer.safetensors").exists()


def test_another_configuration_is_refused_and_its_fields_are_listed(
    whole_run, lopt_command
):
    before = {p: p.stat().st_mtime_ns for p in whole_run.rglob("*")}
    refused = lopt_command(
        *RUN, "--run-dir", whole_run, "--seed=7", "--estimator.std=0.2"
    )
    assert refused.returncode == 2
    assert "holds a run of another configuration" in refused.stderr
    assert "seed: 0 -> 7" in refused.stderr
    assert "estimator.std: 0.1 -> 0.2" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert {p: p.stat().st_mtime_ns for p in whole_run.rglob("*")} == before


def test_operational_fields_may_change_on_resume(whole_run, lopt_command):
    again = lopt_command(*RUN, "--run-dir", whole_run, "--checkpoint-every-minutes=1")
    assert again.returncode == 0, again.stderr


def test_a_directory_in_use_is_refused(whole_run, lopt_command):
    with lock_run_directory(whole_run):
        refused = lopt_command(*RUN, "--run-dir", whole_run)
    assert refused.returncode == 2
    assert "is in use by another `lopt meta-train`" in refused.stderr


def test_export_does_not_disturb_a_running_run(whole_run, tmp_path, lopt_command):
    run_dir = tmp_path / "run"
    subprocess.run(["cp", "-r", whole_run, run_dir], check=True)
    newest = run_dir / "checkpoints" / "3000"
    (newest / "sha256.json").unlink()  # as between Orbax's commit and the manifest
    exported = lopt_command("export", run_dir, "--out", "x", JAX_NUM_CPU_DEVICES="3")
    assert exported.returncode == 0, exported.stderr
    assert "Checkpoint 3000 was not finished" in exported.stdout
    assert newest.exists()
    assert lopt.read_card(tmp_path / "x")["num_outer_steps"] == 2500


@pytest.mark.slow
def test_twenty_kills_at_random_moments_change_nothing(tmp_path):
    arguments = (
        *("meta-train", "quadratic-schedule", "--num-outer-steps=4000"),
        *("--checkpoint-every-steps=10", "--wandb=off", "--evaluate-every-steps=0"),
    )
    command = [sys.executable, "-m", "lopt", *arguments, "--run-dir"]
    place = {"cwd": tmp_path, "env": command_environment()}
    subprocess.run([*command, "whole"], **place, check=True, capture_output=True)
    random = np.random.default_rng(0)
    steps, unfinished = [], 0
    for _ in range(20):
        with subprocess.Popen([*command, "run"], **place, stdout=-3) as process:
            before = max(sealed_steps(tmp_path / "run"), default=0)
            deadline = time.monotonic() + 120
            while max(sealed_steps(tmp_path / "run"), default=0) <= before:
                assert process.poll() is None
                assert time.monotonic() < deadline
            time.sleep(random.uniform(0.0, 1.0))
            process.kill()
        steps.append(max(sealed_steps(tmp_path / "run")))
        unfinished += len(list((tmp_path / "run/checkpoints").glob("*tmp*")))
    assert steps == sorted(steps)
    assert steps[-1] < 4000, "it was over before the last kill"
    assert unfinished, "none of the kills came in the middle of a save"
    subprocess.run([*command, "run"], **place, check=True, capture_output=True)
    assert theta_bytes(tmp_path / "run") == theta_bytes(tmp_path / "whole")


def test_a_full_disk_does_not_end_a_run(tmp_path):
    arguments = (
        *("meta-train", "quadratic-schedule", "--wandb=off", "--run-dir=run"),
        *("--num-outer-steps=8000", "--log-every-steps=2000"),
        *("--checkpoint-every-steps=500", "--evaluate-every-steps=0"),
    )
    with subprocess.Popen(
        [sys.executable, "-m", "lopt", *arguments],
        cwd=tmp_path,
        env=command_environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        wait_for(tmp_path / "run/checkpoints/500/sha256.json", process)
        # Limit the file size, so that no checkpoint can be written completely.
        everything = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        little = (4_000, everything[1])
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, little)
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if "cannot be written" in line:
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, everything)
    assert process.returncode == 0, said
    failed = [line for line in said if "cannot be written" in line]
    assert re.search(
        r"File too large.*continues and retries. Last good checkpoint: step \d+",
        failed[0],
    )
    assert len(failed) == 1  # reported once, not for each checkpoint
    assert any("was written; the disk works again" in line for line in said)
    assert sealed_steps(tmp_path / "run")[-1] == 8000


@pytest.mark.parametrize("num_pairs", [4, 16])
def test_a_population_grows_and_shrinks_on_request(num_pairs, tmp_path):
    config = dataclasses.replace(
        CONFIGS["quadratic-schedule"],
        estimator=PES(Truncation(length=10, horizon=100), num_pairs=8, std=0.1),
        run_dir=tmp_path,
        num_outer_steps=30,
        wandb="off",
    )
    trainer = config.make_trainer()
    data = trainer.load()
    state, _ = trainer.run(data, trainer.init(data, 0), 7)
    write_config(config)
    checkpoints = Checkpoints(tmp_path / "checkpoints", print)
    checkpoints.save_last(state)
    checkpoints.close()
    estimator = config.estimator.resized(num_pairs)
    other = dataclasses.replace(config, estimator=estimator)
    with pytest.raises(UserError, match=r"(?s)num_pairs: 8 -> .*--resize to change"):
        meta_train(other)
    meta_train(dataclasses.replace(other, resize=True))
    checkpoints = Checkpoints(tmp_path / "checkpoints", print)
    assert (checkpoints.latest, checkpoints.population_size()) == (30, num_pairs)
    checkpoints.close()
    # Remaining pairs are unchanged and stay spread over the ages of episodes.
    checkpoints = Checkpoints(tmp_path / "checkpoints", print)
    checkpoints.latest = 7
    trainer = other.make_trainer()
    fresh = trainer.init(trainer.load(), 0)
    resumed = resume(trainer, data, fresh, checkpoints, print)
    checkpoints.close()
    rows = np.arange(num_pairs) * 8 // num_pairs if num_pairs < 8 else np.arange(8)
    before, after = state.populations[0], resumed.populations[0]
    kept = after.accumulator[: len(rows)]
    np.testing.assert_array_equal(kept, before.accumulator[rows])
    assert resumed.step == 7


def test_a_checkpoint_of_other_content_is_refused_in_one_sentence(tmp_path):
    trainer = CONFIGS["quadratic-schedule"].make_trainer()
    state = trainer.init(trainer.load(), 0)
    checkpoints = Checkpoints(tmp_path / "checkpoints", print)
    checkpoints.save_last(state)
    with pytest.raises(UserError, match="it has another") as error:
        checkpoints.restore(state.replace(opt_state=(state.opt_state, state.step)))
    checkpoints.close()
    assert "\n" not in str(error.value)


def test_export_writes_the_latest_checkpoint(whole_run, tmp_path, lopt_command):
    out = tmp_path / "deep" / "mine.safetensors"
    exported = lopt_command("export", whole_run, "--out", out)
    assert exported.returncode == 0, exported.stderr
    assert out.read_bytes() == (whole_run / "optimizer.safetensors").read_bytes()


def test_one_device_and_four_agree(whole_run, tmp_path, lopt_command):
    run_dir = tmp_path / "four"
    four = lopt_command(*RUN, "--run-dir", run_dir, JAX_NUM_CPU_DEVICES="4")
    assert four.returncode == 0, four.stderr
    one = metric_lines(whole_run)[1]
    other = metric_lines(run_dir)[1]
    for name in ("loss", "grad_norm", "accumulator_norm"):
        np.testing.assert_allclose(one[name], other[name], rtol=1e-5)


def test_a_population_that_the_devices_do_not_divide_is_refused(tmp_path, lopt_command):
    refused = lopt_command(
        *RUN,
        "--run-dir",
        tmp_path / "run",
        "--estimator.num-pairs=6",
        JAX_NUM_CPU_DEVICES="4",
    )
    assert refused.returncode == 2
    assert "multiple of the 4 devices" in refused.stderr
    assert "Try 8." in refused.stderr


def test_meta_train_returns_theta_and_metrics(tmp_path, capsys):
    config = dataclasses.replace(
        CONFIGS["quadratic-schedule"],
        run_dir=tmp_path / "run",
        num_outer_steps=20,
        evaluate_every_steps=10,
        wandb="off",
    )
    result = meta_train(config, quiet=True)
    assert capsys.readouterr().out == ""
    assert result.num_outer_steps == 20
    assert result.export == tmp_path / "run" / "optimizer.safetensors"
    np.testing.assert_array_equal(result.metrics["step"], [0, 10, 20])
    per_update = config.estimator.num_inner_steps
    np.testing.assert_array_equal(
        result.metrics["inner_steps"], [0, 10 * per_update, 20 * per_update]
    )
    ends = [result.metrics[f"theta/{i}"][-1] for i in range(2)]
    np.testing.assert_array_equal(ends, result.theta)
    # Seeds share the compiled program.
    before = Trainer.compiled_run._cache_size()
    other = dataclasses.replace(config, seed=1, run_dir=tmp_path / "other")
    again = meta_train(other, quiet=True)
    assert Trainer.compiled_run._cache_size() == before
    assert not np.array_equal(again.theta, result.theta)
