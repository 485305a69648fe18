"""Weights & Biases: a failing or frozen service does not end or block a run."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from meta_train.runtime.loggers.wandb_log import _run_id
from tests.conftest import command_environment, wait_for


@pytest.mark.parametrize("content", [b"", b"../../x", b"\xff", b"0123456789"])
def test_a_damaged_wandb_id_is_replaced(content, tmp_path):
    (tmp_path / "wandb_id").write_bytes(content)
    new = _run_id(tmp_path)
    assert len(new) == 8
    assert _run_id(tmp_path) == new


IMPATIENT = """
import sys
from lopt.cli.main import main
from meta_train.runtime.loggers import wandb_log
wandb_log._SECONDS_TO_LOG = wandb_log._SECONDS_TO_FINISH = 1.0
sys.exit(main(sys.argv[1:]))
"""


def service_of(process):
    """Index of the wandb service that a process has started."""
    for task in Path(f"/proc/{process.pid}/task").glob("*/children"):
        for child in task.read_text().split():
            if Path(f"/proc/{child}/comm").read_text().strip() == "wandb-core":
                return int(child)
    raise AssertionError("it has no wandb service")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_failing_wandb_service_does_not_end_a_run(number, tmp_path):
    arguments = (
        *("meta-train", "quadratic-schedule", "--wandb=offline", "--run-dir=run"),
        *("--num-outer-steps=12000", "--log-every-steps=1"),
        *("--checkpoint-every-steps=500", "--evaluate-every-steps=0"),
    )
    with subprocess.Popen(
        [sys.executable, "-c", IMPATIENT, *arguments],
        cwd=tmp_path,
        env=command_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        wait_for(tmp_path / "run/checkpoints/500/sha256.json", process)
        os.kill(service_of(process), number)
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert output.count("the run continues without it") == 1
    assert "Traceback" not in output
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(12001))
