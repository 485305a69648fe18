"""Loggers: equal metrics everywhere, resuming, and failures that end no run."""

import csv
import dataclasses

import numpy as np
import pytest
from tensorboardX.proto import event_pb2
from tensorboardX.record_writer import masked_crc32c

from lopt.errors import UserError
from meta_train import CONFIGS, meta_train
from meta_train.runtime import loggers
from meta_train.runtime.loggers.csv_log import CSVLog
from meta_train.runtime.metrics import MetricsLog
from meta_train.runtime.metrics_file import metric_columns, read_metrics


def small(run_dir, **fields):
    defaults = {"num_outer_steps": 20, "num_evaluation_runs": 2, "run_dir": run_dir}
    defaults |= {"wandb": "off", "loggers": ("csv", "tensorboard")}
    return dataclasses.replace(CONFIGS["quadratic-schedule"], **defaults | fields)


def read_events(directory):
    """Parse TensorBoard event files; return values by name and step."""
    found = {}
    for path in sorted(directory.iterdir()):
        data = path.read_bytes()
        while data:
            size = int.from_bytes(data[:8], "little")
            assert masked_crc32c(data[:8]) == int.from_bytes(data[8:12], "little")
            event = event_pb2.Event.FromString(data[12 : 12 + size])
            data = data[16 + size :]
            for value in event.summary.value:
                found[value.tag, event.step] = value.simple_value
    return found


def test_all_loggers_have_the_metrics_of_the_run(tmp_path):
    calls = []

    def callback(step, metrics):
        calls.append({"step": step, **metrics})

    result = meta_train(small(tmp_path), quiet=True, callback=callback)
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == [0, 10, 20]
    assert metric_columns(calls).keys() == result.metrics.keys()
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    events = read_events(tmp_path / "tensorboard")
    for name, values in result.metrics.items():
        np.testing.assert_array_equal(
            values, [call.get(name, np.nan) for call in calls]
        )
        np.testing.assert_array_equal(values, [float(r[name] or "nan") for r in rows])
        if name != "step":
            logged = [events.get((name, line["step"]), np.nan) for line in lines]
            np.testing.assert_allclose(logged, values, rtol=1e-6)


def test_loggers_resume_with_the_run(tmp_path):
    meta_train(small(tmp_path, num_outer_steps=10), quiet=True)
    meta_train(small(tmp_path), quiet=True, extend=True)
    with (tmp_path / "metrics.csv").open() as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["0", "10", "20"]
    steps = {step for _, step in read_events(tmp_path / "tensorboard")}
    assert steps == {0, 10, 20}


def test_a_failing_logger_is_reported_once(tmp_path, capsys):
    def callback(step, metrics):
        raise ZeroDivisionError("my own")

    result = meta_train(small(tmp_path), callback=callback)
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("the callback has failed (my own); the run continues") == 1
    assert result.num_outer_steps == 20
    assert (tmp_path / "metrics.csv").exists()


@pytest.mark.parametrize("when", ["__init__", "write", "close"])
def test_loggers_may_fail_at_any_time(when, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(CSVLog, when, fail)
    said = []
    log = MetricsLog(small(tmp_path, loggers=("csv",)), {}, 0, said.append)
    for step in range(3):
        log.write(step, {"loss": 1.0})
    log.close()
    assert len(said) == 1
    assert said[0].startswith("csv ")
    assert "the disk is full" in said[0]
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 3


def test_an_unknown_logger_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"no logger 'tensorbord'.*'tensorboard'"):
        small(tmp_path, loggers=("tensorbord",))


def test_a_missing_package_is_reported_before_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(loggers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"tensorboardX.*\[tensorboard\]"):
        meta_train(small(tmp_path / "run"), quiet=True)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_the_names_are_those_of_the_configuration():
    assert list(loggers.LOGGERS) == list(loggers.LoggerName.__args__)
