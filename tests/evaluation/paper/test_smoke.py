"""All experiments of the paper at the scale smoke, in this process."""

import dataclasses
import inspect
import json
from pathlib import Path

import numpy as np
import pytest

from evaluation.paper import EXPERIMENTS
from evaluation.paper.experiment import SCALES
from evaluation.paper.report import write_report
from evaluation.paper.runner import read_outcome, reproduce
from lopt.errors import UserError

LONGEST = 120  # lines of an experiment


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("paper")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_it_runs(name, out):
    experiment = EXPERIMENTS[name].at("smoke")
    outcome = reproduce(experiment, "smoke", out)
    assert outcome.verdict.holds is None  # nothing is judged at this scale
    assert len(outcome.verdict.evidence) > 50
    figure = outcome.directory / "figure.png"
    assert figure.stat().st_size > 10_000
    again = read_outcome(experiment, "smoke", out)
    assert again is not None
    assert again == outcome._replace(seconds=again.seconds)


def test_the_report_has_all_of_them(out):
    experiments = [kind.at("smoke") for kind in EXPERIMENTS.values()]
    page = write_report(experiments, "smoke", out).read_text()
    assert page.count("<figure>") == len(EXPERIMENTS)
    for experiment in experiments:
        assert f"lopt reproduce {experiment.name} --scale smoke" in page
    summary = json.loads((out / "summary.json").read_text())
    assert list(summary) == list(EXPERIMENTS)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_it_is_described_and_short(name):
    kind = EXPERIMENTS[name]
    assert set(kind.scales) == set(kind.minutes) == set(SCALES)
    for text in (kind.figure, kind.claim, kind.shows, kind.differs):
        assert text
    assert len(Path(inspect.getfile(kind)).read_text().splitlines()) < LONGEST
    assert kind.at("small").num_seeds >= 3
    names = [job.name for job in kind.at("paper").jobs()]
    assert len(set(names)) == len(names)
    assert np.isfinite(list(kind.minutes.values())).all()


def test_results_of_another_scale_or_version_are_refused(tmp_path, monkeypatch):
    kind = EXPERIMENTS["methods"]
    reproduce(kind.at("smoke"), "smoke", tmp_path)
    with pytest.raises(UserError, match="scale: smoke -> small"):
        reproduce(kind.at("small"), "small", tmp_path)
    other = dataclasses.replace(kind.at("smoke"), num_seeds=7)
    with pytest.raises(UserError, match=r"settings\.num_seeds: 3 -> 7"):
        reproduce(other, "smoke", tmp_path)
    monkeypatch.setattr("evaluation.paper.runner.source_hash", lambda _: "f" * 64)
    with pytest.raises(UserError, match=r"source: .* -> ffff"):
        reproduce(kind.at("smoke"), "smoke", tmp_path)
    assert read_outcome(kind.at("smoke"), "smoke", tmp_path) is None


def test_recorded_jobs_do_not_run_again(tmp_path, monkeypatch):
    experiment = EXPERIMENTS["methods"].at("smoke")
    ran = []
    reproduce(experiment, "smoke", tmp_path, lambda name, _: ran.append(name))
    assert ran == [job.name for job in experiment.jobs()]
    (tmp_path / "methods" / ran[2] / "record.json").unlink()
    again = []
    reproduce(experiment, "smoke", tmp_path, lambda name, _: again.append(name))
    assert again == [ran[2]]
    (tmp_path / "methods" / ran[0] / "record.json").write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        reproduce(experiment, "smoke", tmp_path)


def test_missing_data_and_extras_are_named_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("LOPT_DATA_DIR", str(tmp_path))
    for name, message in {
        "lopt-mnist": "lopt data prepare mnist",
        "resnet-cifar10": "lopt data prepare cifar10",
        "uci-l2": "uci_yacht.csv",
    }.items():
        with pytest.raises(UserError, match=message):
            reproduce(EXPERIMENTS[name].at("small"), "small", tmp_path / "out")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name, extra in {"swimmer": "control", "many-hyperparameters": "tuners"}.items():
        with pytest.raises(UserError, match=rf"lopt\[{extra}\]"):
            EXPERIMENTS[name].at("small").check_prepared()
    assert not (tmp_path / "out").exists()
