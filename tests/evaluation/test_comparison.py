"""End-to-end evaluation: contenders, scores, progress, cache and report files."""

import csv
import html
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import lopt
from evaluation import evaluate, scores
from evaluation.cli.evaluate import evaluate as evaluate_command
from evaluation.cli.report import report as report_command
from evaluation.report.results import read_results
from evaluation.report.tables import case_table
from evaluation.report.write import write_report
from evaluation.suites import (
    SUITES,
    Case,
    marked,
    missing_data,
    with_training_cases,
)
from evaluation.training import batched as runs, cases as run
from evaluation.training.batched import Curves
from evaluation.training.cache import Cache
from lopt.errors import UserError
from lopt.files.dataclass_json import to_dict
from lopt.optimizers.normalized_mlp import NormalizedMLP
from lopt.optimizers.scheduled_sgd import ScheduledSGD
from tasks.supervised.mlp import MLP
from tasks.synthetic.quadratic import RandomQuadratic
from tasks.zoo import ZOO

TASK = RandomQuadratic(dim=4)
CASES = (
    Case("quadratic", TASK, 40, "test"),
    Case("larger quadratic", RandomQuadratic(dim=6), 40, "larger"),
)
FEW = {"num_seeds": 6, "num_tuning_seeds": 2, "baselines": ("sgd",)}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Result cache shared by the tests of this file."""
    return Cache(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def results(kept):
    adam = lambda num_steps: optax.adam(0.1)
    diverging = optax.sgd(1e9)
    contenders = {"mine": optax.sgd(0.05), "theirs": adam, "wild": diverging}
    return evaluate(contenders, CASES, cache=kept, **FEW)


def test_every_kind_of_optimizer_is_evaluated(results, kept, tmp_path):
    path = tmp_path / "mine.safetensors"
    theta = jnp.log(jnp.full(2, 0.05))
    lopt.save(path, ScheduledSGD(), theta, {})
    again = evaluate(
        {"file": path, "pair": (ScheduledSGD(), theta)}, CASES[:1], cache=kept, **FEW
    )
    # Both are equal to `optax.sgd(0.05)`.
    expected = results["cases"][0]["methods"]["mine"]["final_loss"]["value"]
    for name in ("file", "pair"):
        found = again["cases"][0]["methods"][name]["final_loss"]["value"]
        np.testing.assert_allclose(found, expected, rtol=1e-4)
    with pytest.raises(UserError, match="must not have the name of a baseline"):
        evaluate({"adam": optax.adam(0.1)}, CASES, cache=kept, **FEW)


def test_adam_entered_as_if_it_were_learned_is_as_fast_as_adam(kept, results):
    for case in results["cases"]:
        constant = case["tuning"]["adam"]["final"]["constant"]
        best = case["tuning"]["adam"]["learning_rates"][int(np.argmin(constant))]
        entered = evaluate(
            {"entered": optax.adam(best)},
            [c for c in CASES if c.name == case["name"]],
            cache=kept,
            **FEW,
        )
        found = entered["cases"][0]["methods"]["entered"]["speed_up"]
        assert found["low"] <= 1.0 <= found["high"]


def test_an_optimizer_that_diverges_is_the_worst_and_is_counted(results):
    wild = results["methods"]["wild"]
    assert wild["diverged"] == 1.0
    assert wild["average_rank"] == len(results["methods"])
    assert wild["probability_of_improvement"]["value"] == 0.0
    assert wild["profile_score"] == 0.0
    assert wild["interquartile_mean"]["value"] is None
    for case in results["cases"]:
        assert case["methods"]["wild"]["final_loss"]["value"] is None
        assert case["methods"]["wild"]["curve"]["steps"][-1] < 40
    assert "100% of its runs diverged" in results["headlines"][2]


def test_adam_against_itself_has_ratio_one(results):
    for case in results["cases"]:
        adam = case["methods"]["adam"]
        ratio = [adam["final_loss_ratio"][key] for key in ("value", "low", "high")]
        np.testing.assert_allclose(ratio, 1.0)
        assert adam["steps_to_target"] <= 0.75 * 40 + 1
        assert set(adam["settings"]) == {"mean", "final"}
        assert not any(tuning["at_edge"] for tuning in case["tuning"].values())
    assert results["methods"]["adam"]["probability_of_improvement"]["value"] == 0.5


def test_winners_are_compared_per_seed():
    seeds = np.linspace(1.0, 9.0, 8)[:, None]  # difficulty shared by all methods
    curves = {
        "best": seeds * np.ones(20),
        "as good": (seeds + np.tile([[-0.1], [0.1]], (4, 1))) * np.ones(20),
        "worse": 1.1 * seeds * np.ones(20),
        "wild": np.full((8, 20), np.inf),
    }
    found = {
        name: Curves(x, x[:, -1:], np.nan * x[:, -1:]) for name, x in curves.items()
    }
    methods = {
        name: run.Method({"mean": c, "final": c}, {}) for name, c in found.items()
    }
    of = lambda names: scores._winners(
        run.CaseRuns(CASES[0], {n: methods[n] for n in names}, [], np.ones((1, 1, 1)))
    )
    assert of(methods) == ["best", "as good"]
    assert of(["worse", "wild"]) == ["worse"]
    assert of(["wild"]) == []


def test_costs_are_counted(results):
    first, second = (case["methods"] for case in results["cases"])
    assert first["mine"]["bytes_per_parameter"] == 0
    assert 8 <= first["adam"]["bytes_per_parameter"] <= 8 + 2
    for found in (first["mine"], first["sgd"], second["mine"], second["adam"]):
        assert found["ms"] > 0
    ratio = (
        second["mine"]["wall_clock_speed_up"]["value"]
        / (second["mine"]["speed_up"]["value"])
    )
    np.testing.assert_allclose(ratio, second["adam"]["ms"] / second["mine"]["ms"])


def test_an_interrupted_evaluation_resumes(tmp_path, monkeypatch):
    trained, whole = [], runs.train

    def interrupted(task, *rest):
        if task == CASES[0].task:
            raise KeyboardInterrupt
        trained.append(task)
        return whole(task, *rest)

    contender = {"pair": (ScheduledSGD(), jnp.log(jnp.full(2, 0.05)))}
    cache = Cache(tmp_path)
    monkeypatch.setattr(runs, "train", interrupted)
    # One case at a time, longest first, so that the longest finishes before the other.
    pool = run.ThreadPoolExecutor
    monkeypatch.setattr(run, "ThreadPoolExecutor", lambda num: pool(1))
    with pytest.raises(KeyboardInterrupt):
        evaluate(contender, CASES, cache=cache, **FEW)
    assert len(trained) >= 4  # contender, tuning, baselines, longer Adam runs
    trained.clear()
    monkeypatch.setattr(runs, "train", lambda *a: [trained.append(a[0]), whole(*a)][1])
    evaluate(contender, CASES, cache=cache, **FEW)
    assert set(trained) == {CASES[0].task}


def test_progress_is_reported(kept):
    reports = []
    evaluate(
        {"mine": optax.sgd(0.05)},
        CASES,
        cache=kept,
        on_progress=lambda *report: reports.append(report),
        **FEW,
    )
    fractions = [fraction for fraction, _ in reports]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    # All planned work is reported, also if it comes from the cache.
    assert fractions[-3] > 0.9


def test_files_of_a_run(results, tmp_path):
    write_report(tmp_path, results)
    assert read_results(tmp_path) == results
    rows = list(csv.DictReader((tmp_path / "results.csv").read_text().splitlines()))
    assert len(rows) == 2 * len(results["methods"])
    mine = next(row for row in rows if row["optimizer"] == "mine")
    expected = results["cases"][0]["methods"]["mine"]
    assert float(mine["final_loss"]) == expected["final_loss"]["value"]
    assert float(mine["speed_up_low"]) == expected["speed_up"]["low"]
    page = (tmp_path / "report.html").read_text()
    headlines = [html.escape(text) for text in results["headlines"]]
    for text in (*headlines, "Performance profile", "How it was run"):
        assert text in page
    assert "http" not in page.split("base64")[0]  # no external resources
    for kind in ("svg", "png"):
        assert len(list((tmp_path / "figures").glob(f"*.{kind}"))) == 6


def test_results_of_another_version_are_refused_in_a_sentence(tmp_path, results):
    (tmp_path / "results.json").write_text(json.dumps({**results, "schema": 1}))
    with pytest.raises(UserError, match="its schema is 1, and this version reads 4"):
        read_results(tmp_path)
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        report_command([str(tmp_path)])


def test_missing_data_is_reported_first(tmp_path, monkeypatch, kept):
    monkeypatch.setenv("LOPT_DATA_DIR", str(tmp_path))
    cases = (CASES[0], Case("mnist", MLP("mnist"), 40, "images"))
    assert list(missing_data(cases)) == ["mnist"]
    with pytest.raises(UserError, match=r"data of mnist must be there.*skip-missing"):
        evaluate({"mine": optax.sgd(0.05)}, cases, cache=kept, **FEW)
    found = evaluate(
        {"mine": optax.sgd(0.05)}, cases, cache=kept, skip_missing=True, **FEW
    )
    assert found["how"]["skipped"] == ["mnist"]
    assert [case["name"] for case in found["cases"]] == ["quadratic"]


def test_one_seed_and_one_task(kept):
    few = {**FEW, "num_seeds": 1, "num_tuning_seeds": 1}
    found = evaluate({"mine": optax.sgd(0.05)}, CASES[:1], cache=kept, **few)
    loss = found["cases"][0]["methods"]["mine"]["final_loss"]
    assert loss["value"] > 0
    assert loss["low"] is None
    assert case_table(found).row_count == 1
    with pytest.raises(UserError, match="must be at least 1; got 0 and 1"):
        evaluate({}, CASES, **{**few, "num_seeds": 0})


def test_runs_can_be_cut_short(kept):
    cases = (*CASES, Case("longer quadratic", TASK, 80, "longer"))
    few = {**FEW, "num_seeds": 2, "num_tuning_seeds": 1, "cache": kept}
    found = evaluate({"mine": optax.sgd(0.05)}, cases, max_steps=10, **few)
    # Cases that differ only in their length are merged.
    labels = [case["label"] for case in found["cases"]]
    assert labels == ["quadratic, 10 steps", "larger quadratic, 10 steps"]
    assert found["cases"][0]["methods"]["adam"]["curve"]["steps"][-1] == 10
    assert found["how"]["max_steps"] == 10
    with pytest.raises(UserError, match="`max_steps` must be at least 1; got 0"):
        evaluate({}, CASES, max_steps=0)


def test_the_training_tasks_come_first_and_once():
    task = ZOO["digits-mlp"].problem
    card = {"tasks": [to_dict(task), {"type": "Mine"}, "?"], "horizons": [200, 200]}
    cases = with_training_cases(SUITES["architecture"], [card, card])
    assert cases[0] == ("digits-mlp", task, 200, "trained on")
    assert len(cases) == len(SUITES["architecture"])


def test_cases_within_the_horizons_of_training_are_marked():
    card = {"tasks": [to_dict(MLP())], "horizons": [100, 400]}
    reasons = [case.reason for case in marked(SUITES["horizon"], [card])]
    assert reasons == ["horizon 40", "trained on", "horizon 1000", "horizon 8000"]


def test_suites_have_no_task_that_is_there_to_train_or_to_validate_on():
    held_out = {name for name, entry in ZOO.items() if entry.use == "held out"}
    assert {case.name for case in SUITES["heldout"]} <= held_out
    assert {case.name for case in SUITES["quick"]} <= held_out
    assert len(SUITES["heldout"]) >= 12
    kinds = {type(case.task).__name__ for case in SUITES["quick"]}
    assert {"ConvNet", "VariationalAutoencoder", "RecurrentLM", "MLP"} <= kinds
    assert not missing_data(SUITES["quick"])
    for axis in ("width", "depth", "horizon", "batch", "architecture", "dataset"):
        assert len(SUITES[axis]) >= 4
        assert not missing_data(SUITES[axis])


def test_summaries_count_tasks_over_training_and_test_loss(results):
    mine, wild = (results["summaries"][name] for name in ("mine", "wild"))
    ratios = [c["methods"]["mine"]["final_loss_ratio"] for c in results["cases"]]
    assert mine["num_tasks"] == 2
    assert mine["below_reference"] == sum(r["value"] < 1 for r in ratios)
    assert mine["significantly_above"] == sum(r["low"] > 1 for r in ratios)
    values = [r["value"] for r in ratios]
    np.testing.assert_allclose(mine["geometric_mean_ratio"], np.sqrt(np.prod(values)))
    finals = [
        {n: m["final_loss"]["value"] for n, m in c["methods"].items()}
        for c in results["cases"]
    ]
    below = sum(f["mine"] < min(f["adam"], f["sgd"]) for f in finals)
    assert mine["below_best_baseline"] == below
    assert wild["geometric_mean_ratio"] is None
    assert (wild["below_reference"], wild["test_no_worse"]) == (0, 0)
    assert wild["significantly_above"] == 2
    assert "mine (untuned) on 2 tasks" in results["headlines"][0]


def test_the_untrained_theta_is_a_row_of_its_own(kept, tmp_path):
    optimizer, path = ScheduledSGD(), tmp_path / "mine.safetensors"
    lopt.save(path, optimizer, jnp.log(jnp.full(2, 0.05)), {"seed": 3})
    found = evaluate({"mine": path}, CASES[:1], ablate=["untrained"], cache=kept, **FEW)
    again = evaluate(
        {"first": (optimizer, optimizer.init_theta(jax.random.key(0)))},
        CASES[:1],
        cache=kept,
        **FEW,
    )
    loss = lambda results, name: results["cases"][0]["methods"][name]["final_loss"]
    # The initial theta of this optimizer does not depend on the seed.
    assert loss(found, "mine-untrained") == loss(again, "first")
    assert list(found["summaries"]) == ["mine", "mine-untrained"]
    with pytest.raises(UserError, match="no ablation 'random'"):
        evaluate({"mine": path}, CASES[:1], ablate=["random"], cache=kept, **FEW)


def test_a_learning_rate_is_tuned_only_if_there_is_one(kept, key):
    normalized = NormalizedMLP(width=2, learning_rate=1e-4)
    contenders = {
        "mine": (normalized, normalized.init_theta(key)),
        "schedule": (ScheduledSGD(), jnp.log(jnp.full(2, 0.05))),
    }
    few = {**FEW, "num_seeds": 3, "num_tuning_seeds": 1, "cache": kept}
    found = evaluate(contenders, CASES[:1], tune=["mine"], **few)
    case = found["cases"][0]
    rate, schedule = case["methods"]["mine"]["settings"]["final"]
    assert rate > 1e-3  # 40 steps of 1e-4 make no progress
    assert schedule in ("constant", "cosine")
    assert not found["methods"]["mine"]["is_baseline"]
    assert "mine (tuned)" in found["headlines"][0]
    plain = evaluate(contenders, CASES[:1], **few)["cases"][0]["methods"]["mine"]
    tuned = case["methods"]["mine"]["final_loss"]["value"]
    assert tuned < 0.5 * plain["final_loss"]["value"]
    with pytest.raises(UserError, match=r"schedule is a ScheduledSGD, which has none"):
        evaluate(contenders, CASES[:1], tune=["schedule"], **few)
    with pytest.raises(UserError, match=r"Did you mean 'mine'"):
        evaluate(contenders, CASES[:1], tune=["min"], **few)


def test_several_files_are_put_side_by_side(tmp_path, monkeypatch, capsys, key):
    monkeypatch.setitem(SUITES, "quick", CASES[:1])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    optimizer = ScheduledSGD(initial_lr=0.05)
    for name in ("first", "second"):
        path = tmp_path / f"{name}.safetensors"
        lopt.save(path, optimizer, optimizer.init_theta(key), {})
    out = tmp_path / "out"
    arguments = [str(tmp_path / f"{name}.safetensors") for name in ("first", "second")]
    arguments += ["--out", str(out), "--num-seeds=3", "--baselines", "sgd"]
    assert evaluate_command(arguments) == 0
    shown = capsys.readouterr().out
    assert "first" in shown
    assert "second" in shown
    assert f"Report: {out / 'report.html'}" in shown
    results = json.loads((out / "results.json").read_text())
    assert list(results["contenders"]) == ["first", "second"]
    assert report_command([str(out), "--out", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "report.html").exists()
