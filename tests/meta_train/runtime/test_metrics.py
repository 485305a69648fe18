"""Metrics log: damaged files, full disks and failing loggers do not end a run."""

import dataclasses
import json
import os
import resource
import tracemalloc

import jax.numpy as jnp
import numpy as np
import pytest

from lopt.errors import UserError
from meta_train.config.preset_configs import CONFIGS
from meta_train.runtime import metrics_file
from meta_train.runtime.metrics import MetricsLog, theta_metrics
from meta_train.runtime.metrics_file import metric_columns, read_metrics


def open_log(tmp_path, step, say=print):
    config = dataclasses.replace(
        CONFIGS["quadratic-schedule"], run_dir=tmp_path, wandb="off"
    )
    return MetricsLog(config, {}, step, say)


@pytest.fixture
def limit_file_size():
    """Function that limits the size of files, as a full disk does."""
    everything = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size):
        soft = everything[0] if size is None else size
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, everything[1]))

    yield limit
    limit(None)


def test_lines_that_do_not_fit_on_the_disk_are_written_later(tmp_path, limit_file_size):
    said = []
    log = open_log(tmp_path, 0, said.append)
    limit_file_size(100)
    for step in range(10):
        log.write(step, {"loss": 0.5 * step})
    assert len(said) == 1
    assert "cannot be written" in said[0]
    assert len(read_metrics(tmp_path / "metrics.jsonl")) < 10
    limit_file_size(200)  # room for some of the lines
    log.flush()
    assert 0 < len(read_metrics(tmp_path / "metrics.jsonl")) < 10
    limit_file_size(None)
    log.write(10, {"loss": float("nan")})
    log.close()
    expected = [{"step": i, "loss": 0.5 * i} for i in range(10)]
    expected.append({"step": 10, "loss": None})
    assert read_metrics(tmp_path / "metrics.jsonl") == expected
    assert len(said) == 1


BAD = (
    b'{"step": 2, "loss"\n',
    b"\xff\xfe\n",
    b'{"step": "2", "loss": 1.0}\n',
    b'{"step": 2, "loss": "low"}\n',
    b'{"loss": 1.0}\n',
    b"[1, 2]\n",
    b"[" * 100_000 + b"\n",
    b'{"step": 2, "loss": 1' + b"0" * 400 + b"}\n",
)


@pytest.mark.parametrize("bad", BAD, ids=[repr(line[:20]) for line in BAD])
def test_damaged_lines_are_skipped_and_later_ones_kept(bad, tmp_path):
    path = tmp_path / "metrics.jsonl"
    good = [json.dumps({"step": i, "loss": 1.0}).encode() + b"\n" for i in range(5)]
    path.write_bytes(b"".join([*good[:2], bad, *good[2:], b'{"step": 5, "lo']))
    assert [line["step"] for line in read_metrics(path)] == [0, 1, 2, 3, 4]
    said = []
    log = open_log(tmp_path, 3, said.append)
    log.write(4, {"loss": 2.0})
    log.close()
    lines = read_metrics(path)
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert lines[-1]["loss"] == 2.0
    assert said == [f"{path} has 1 damaged lines, which are ignored."]


def test_a_run_at_step_zero_starts_with_an_empty_file(tmp_path):
    for _ in range(2):
        log = open_log(tmp_path, 0)
        log.write(0, {"meta_loss": 1.0})
        log.close()
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1


def test_resuming_takes_constant_memory(tmp_path):
    line = json.dumps({"step": 1, **{f"metric{i}": 0.5 for i in range(20)}}) + "\n"
    (tmp_path / "metrics.jsonl").write_text(line * 20_000)
    tracemalloc.start()
    open_log(tmp_path, 1).close()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e6 < (tmp_path / "metrics.jsonl").stat().st_size / 5


def test_columns_have_nan_where_a_metric_was_not_logged():
    lines = [{"step": 0, "meta_loss": 2.0}, {"step": 5, "loss": None}]
    columns = metric_columns(lines)
    assert set(columns) == {"step", "meta_loss", "loss"}
    np.testing.assert_array_equal(columns["step"], [0, 5])
    np.testing.assert_array_equal(columns["meta_loss"], [2.0, np.nan])
    assert np.isnan(columns["loss"]).all()
    assert metric_columns([]) == {}


def test_numbers_of_a_small_theta_have_names():
    theta = {"lr": jnp.asarray([0.5, 0.25]), "scale": jnp.asarray(2.0)}
    assert theta_metrics(theta) == {
        "theta/lr/0": 0.5,
        "theta/lr/1": 0.25,
        "theta/scale": 2.0,
    }
    assert theta_metrics(jnp.asarray(1.0)) == {"theta": 1.0}
    assert theta_metrics(jnp.zeros(33)) == {}


def test_a_link_is_read_and_not_written(tmp_path):
    line = '{"step": 1, "loss": 1.0}\n'
    (tmp_path / "elsewhere").write_text(line)
    (tmp_path / "metrics.jsonl").symlink_to("elsewhere")
    said = []
    log = open_log(tmp_path, 0, said.append)
    log.write(2, {"loss": 1.0})
    log.close()
    assert (tmp_path / "elsewhere").read_text() == line
    assert "cannot be written" in said[0]
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1


@pytest.mark.parametrize("kind", ["directory", "fifo", "device", "sparse"])
def test_irregular_files_are_neither_read_nor_written(kind, tmp_path):
    path = tmp_path / "metrics.jsonl"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.touch()
        os.truncate(path, 2**31)
    with pytest.raises(UserError, match="must be a file of metrics"):
        read_metrics(path)
    said = []
    log = open_log(tmp_path, 0, said.append)
    log.write(1, {"loss": 1.0})
    log.close()
    assert "cannot be written" in said[0]


def test_long_metrics_are_thinned(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics_file, "_MOST_LINES", 10)
    lines = [json.dumps({"step": i}) + "\n" for i in range(45)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    steps = [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")]
    assert steps == list(range(0, 45, 8))
