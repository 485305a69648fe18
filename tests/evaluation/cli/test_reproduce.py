"""Command line of `lopt reproduce`."""

import json

import pytest

from evaluation import paper
from evaluation.paper.methods import Methods
from lopt.cli.main import main


@pytest.fixture
def only_methods(monkeypatch):
    """Leave the fastest experiment only."""
    monkeypatch.setattr(paper, "EXPERIMENTS", {"methods": Methods})


def test_all_experiments_run_in_processes_of_their_own(
    only_methods, tmp_path, capfd, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "out"
    command = ["reproduce", "all", "--scale", "smoke", "--out", str(out)]
    assert main(command) == 0
    assert "inconclusive" in capfd.readouterr().out
    assert (out / "report.html").stat().st_size > 10_000
    assert json.loads((out / "summary.json").read_text())["methods"]["holds"] is None
    records = sorted((out / "methods").rglob("record.json"))
    before = [path.stat().st_mtime_ns for path in records]
    assert main(command) == 0  # nothing is left to do
    assert [path.stat().st_mtime_ns for path in records] == before
    # Results of another scale are refused before anything runs.
    assert main([*command[:3], "small", *command[4:]]) == 2
    assert "scale: smoke -> small" in capfd.readouterr().err


def test_an_experiment_that_fails_is_named_with_its_error(
    only_methods, tmp_path, capfd
):
    out = tmp_path / "out"
    broken = out / "methods" / "rows" / "PES"
    broken.mkdir(parents=True)
    (broken / "record.json").write_text("{")
    command = ["reproduce", "all", "--scale", "smoke", "--out", str(out)]
    assert main(command) == 1
    assert "failed" in capfd.readouterr().out


def test_one_experiment_prints_its_verdict(tmp_path, capfd):
    command = ["reproduce", "methods", "--scale=smoke", "--out", str(tmp_path)]
    assert main(command) == 0
    shown = capfd.readouterr().out
    for word in ("Claim: ", "Verdict at the scale smoke: inconclusive", "report.html"):
        assert word in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["toy2d"], "Did you mean 'toy-2d'?"),
        (["toy-2d", "--scale", "smal"], "Did you mean 'small'?"),
        ([], "must be given an experiment"),
        (["all", "--workers", "0"], "`workers` must be at least 1"),
    ],
)
def test_errors_name_a_remedy(arguments, message, capfd):
    assert main(["reproduce", *arguments]) == 2
    assert message in capfd.readouterr().err


def test_the_list_has_every_experiment(capfd):
    assert main(["reproduce", "--list"]) == 0
    shown = capfd.readouterr().out
    assert all(name in shown for name in paper.EXPERIMENTS)
