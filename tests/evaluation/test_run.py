import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import lopt
from evaluation import report
from evaluation.baselines import LEARNING_RATES, Adam
from evaluation.run import evaluate, evaluate_case, loss_curves
from evaluation.suites import SUITES, Case, with_training_cases
from lopt.describe import to_dict
from lopt.schedules import ScheduledSGD
from meta_train.inner_training import InnerTraining
from tasks.quadratic import RandomQuadratic
from tasks.zoo import ZOO

TASK = RandomQuadratic(dim=4)
CASE = Case("quadratic", TASK, 30, "test")


def test_curves_are_those_of_a_plain_optax_loop(key):
    system = InnerTraining(TASK, Adam())
    data = system.load()
    rates = jnp.asarray([0.01, 0.1])
    keys = jax.random.split(key, 3)
    curves = loss_curves(system, data, rates, 5, keys)
    key_init, key_unroll = jax.random.split(keys[2])
    tx = optax.adam(0.1)
    params = TASK.init_params(key_init)
    state = tx.init(params)
    for t, step_key in enumerate(jax.random.split(key_unroll, 5)):
        batch = TASK.sample_batch(data.train, step_key)
        loss, grads = jax.value_and_grad(TASK.loss)(params, batch)
        np.testing.assert_allclose(curves[1, 2, t], loss, rtol=1e-5)
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)


def test_adam_entered_as_if_it_were_learned_ties_with_itself(key):
    best = evaluate_case(CASE, Adam(), jnp.asarray(0.1), 5, 0).mean.learning_rate
    result = evaluate_case(CASE, Adam(), jnp.asarray(best, jnp.float32), 5, 0)
    np.testing.assert_allclose(result.mean.ratio, (1.0, 1.0, 1.0), rtol=1e-5)


def test_adam_is_tuned_for_each_metric_on_these_seeds(key):
    result = evaluate_case(CASE, ScheduledSGD(), ScheduledSGD().init_theta(key), 5, 0)
    best = int(np.argmin(result.learning_rate_losses))
    assert result.mean.learning_rate == LEARNING_RATES[best]
    assert len(LEARNING_RATES) >= 10
    np.testing.assert_allclose(
        result.mean.adam.value, result.learning_rate_losses[best], rtol=1e-5
    )


def test_a_diverging_optimizer_is_reported_and_not_dropped(tmp_path):
    theta = jnp.full(2, 20.0)  # a learning rate of half a billion
    result = evaluate(ScheduledSGD(), theta, (CASE,), num_seeds=3)[0]
    assert result.num_diverged == 3
    report.write(tmp_path, [result], {})
    case = json.loads((tmp_path / "results.json").read_text())["cases"][0]
    assert case["num_diverged"] == 3
    assert case["mean_loss"]["learned"]["value"] is None


def test_the_training_tasks_come_first_and_once():
    task = ZOO["digits-mlp"].problem
    card = {"tasks": [to_dict(task), {"type": "Mine"}, "?"], "horizons": [200, 200]}
    cases = with_training_cases(SUITES["quick"], card)
    assert cases[0] == ("digits-mlp", task, 200, "trained on")
    assert len(cases) == len(SUITES["quick"])


def test_the_quick_suite_leaves_what_was_trained_on_in_every_direction():
    reasons = {case.reason for case in SUITES["quick"]}
    assert {"wider", "deeper", "activation", "dataset", "longer"} <= reasons


@pytest.fixture
def small_suite(monkeypatch):
    monkeypatch.setitem(SUITES, "quick", (CASE,))


def test_the_command_writes_table_figure_and_numbers(
    small_suite, tmp_path, key, capsys
):
    from evaluation.cli import evaluate as command

    path = tmp_path / "mine.safetensors"
    optimizer = ScheduledSGD(initial_lr=0.5)
    lopt.save(path, optimizer, optimizer.init_theta(key), {})
    out = tmp_path / "out"
    assert command([str(path), "--out", str(out), "--num-seeds=4"]) == 0
    assert "Learned optimizer against tuned Adam, 4 unseen seeds" in (
        capsys.readouterr().out
    )
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    results = json.loads((out / "results.json").read_text())
    assert results["schema"] == 1
    case = results["cases"][0]
    low, value, high = (case["mean_loss"]["ratio"][k] for k in ("low", "value", "high"))
    assert low <= value <= high
    assert len(case["curves"]["learned"]) == 30
