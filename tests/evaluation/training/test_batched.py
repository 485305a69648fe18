"""Batched runs equal single runs, baselines are tuned, and results are cached."""

import dataclasses
import platform
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from evaluation.baselines import (
    BASELINES,
    Baseline,
    Fixed,
    Setting,
    candidate,
    setting,
)
from evaluation.suites import Case
from evaluation.training import batched as runs, cases
from evaluation.training.batched import Runs, train
from evaluation.training.cache import Cache, name_of
from evaluation.training.cached import train_cached
from evaluation.training.costs import StepCost
from evaluation.training.grid_search import num_grid_runs, tune
from evaluation.training.work import Work, work_per_run
from tasks.supervised.mlp import MLP
from tasks.synthetic.quadratic import QuadraticFamily, RandomQuadratic

TASK = RandomQuadratic(dim=4)
CASE = Case("quadratic", TASK, 30, "test")
DIGITS = MLP(width=8, depth=1, batch_size=16)


def group(name, rates, keys, schedule=0.0):
    rates = jnp.asarray(rates, jnp.float32)
    return Runs(Baseline(name), Setting(rates, jnp.full(len(rates), schedule)), keys)


def test_runs_are_those_of_a_plain_optax_loop(key):
    num_steps, rates = 4, [0.01, 0.1]
    keys = jax.random.split(key, 2)
    groups = [group("adam", rates, keys), group("muon", rates, keys)]
    found = train(DIGITS, num_steps, groups)
    for curves, make in zip(found, (optax.adam, optax.contrib.muon), strict=True):
        for i, rate in enumerate(rates):
            key_init, key_steps = jax.random.split(keys[i])
            tx, params = make(rate), DIGITS.init_params(key_init)
            data, state, update = DIGITS.load(), tx.init(params), jax.jit(tx.update)
            for t, step_key in enumerate(jax.random.split(key_steps, num_steps)):
                batch = DIGITS.sample_batch(data, step_key)
                loss, grads = jax.value_and_grad(DIGITS.loss)(params, batch)
                np.testing.assert_allclose(curves.train_loss[i, t], loss, rtol=2e-4)
                updates, state = update(grads, state, params)
                params = optax.apply_updates(params, updates)
            whole = DIGITS.load("test").whole()
            error = float(DIGITS.error(params, whole))
            # `test_error` is estimated from four batches of sixteen test examples.
            deviation = np.sqrt(error * (1 - error) / 64)
            assert abs(curves.test_error[i, -1] - error) < 4 * deviation + 1e-6


def test_a_run_does_not_depend_on_those_beside_it(key, monkeypatch):
    keys = jax.random.split(key, 7)
    adam, lion = group("adam", [0.1] * 7, keys), group("lion", [0.01] * 3, keys[:3])
    together = train(QuadraticFamily(), 10, [adam, lion])
    monkeypatch.setattr(runs, "_MOST_AT_ONCE", 2)  # rounds, the last one partial
    for one, expected in zip((adam, lion), together, strict=True):
        (alone,) = train(QuadraticFamily(), 10, [one])
        np.testing.assert_allclose(alone.train_loss, expected.train_loss, rtol=1e-5)
        assert len(alone.train_loss) == len(one.keys)
        assert np.isnan(alone.test_error).all()


def test_the_length_of_a_run_is_no_part_of_the_program(key):
    keys = jax.random.split(key, 2)
    train(TASK, 40, [group("sgd", [0.1] * 2, keys)])
    before = runs._stretch._cache_size()
    (curves,) = train(TASK, 100, [group("sgd", [0.1] * 2, keys)])
    assert curves.train_loss.shape == (2, 100)
    assert curves.test_loss.shape == (2, 5)
    assert runs._stretch._cache_size() == before


def test_schedule_free_is_tested_at_its_averaged_parameters(key):
    keys = jax.random.split(key, 2)
    (curves,) = train(TASK, 20, [group("schedule-free", [0.1] * 2, keys)])
    tx = BASELINES["schedule-free"].make(0.1)
    key_init, key_steps = jax.random.split(keys[0])
    params = TASK.init_params(key_init)
    state = tx.init(params)
    for step_key in jax.random.split(key_steps, 20):
        grads = jax.grad(TASK.loss)(params, TASK.sample_batch(TASK.load(), step_key))
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    read = optax.contrib.schedule_free_eval_params(state, params)
    batches = [
        TASK.sample_batch(TASK.load(), k)
        for k in jax.random.split(jax.random.key(0), 4)
    ]
    loss = lambda params: np.mean([TASK.loss(params, batch) for batch in batches])
    np.testing.assert_allclose(curves.test_loss[0, -1], loss(read), rtol=1e-4)
    assert not np.isclose(loss(params), loss(read), rtol=1e-3)


@pytest.mark.parametrize("name", BASELINES)
def test_schedules_of_baselines(name):
    params = {"w": jnp.ones((3, 2))}
    steps = {}
    for schedule in ("constant", "cosine"):
        tx = Baseline(name).as_optax(setting(0.1, schedule), 10)
        state, sizes = tx.init(params), []
        for _ in range(11):
            updates, state = tx.update({"w": jnp.ones((3, 2))}, state, params)
            sizes.append(float(jnp.abs(updates["w"]).max()))
        steps[schedule] = sizes
    if name != "schedule-free":  # it counts its steps from one
        np.testing.assert_allclose(steps["cosine"][0], steps["constant"][0], rtol=1e-5)
        assert steps["cosine"][10] < 1e-6 < steps["constant"][10]
    assert steps["cosine"][9] < steps["constant"][9]


@pytest.mark.parametrize("lowest", [-6.0, -2.0, 1.0])
def test_the_grid_grows_until_the_best_is_inside(lowest, key, monkeypatch):
    kind = BASELINES["sgd"]._replace(lowest=lowest)
    monkeypatch.setitem(BASELINES, "sgd", kind)
    keys = jax.random.split(key, 2)
    shares = []
    work = Work(
        num_grid_runs(1, 2) * work_per_run(CASE), lambda *x: shares.append(x[0])
    )
    (tuned,) = tune(CASE, [candidate("sgd")], keys, Cache(), work)
    assert shares == sorted(shares)
    assert shares[-1] > 0.98  # further grids are added to the planned work
    assert tuned.edges() == []
    assert (tuned.num_rounds > 1) == (lowest != -2.0)
    assert len(tuned.rates) == 10 * tuned.num_rounds
    np.testing.assert_allclose(np.diff(np.log10(tuned.rates)), 1 / 3, rtol=1e-5)
    for metric, losses in tuned.losses.items():
        rate, schedule = tuned.best(metric)
        where = int(np.argmin(np.abs(tuned.rates - rate)))
        assert 0 < where < len(tuned.rates) - 1
        assert losses[where].min() == np.nanmin(losses)
        (again,) = train(
            TASK,
            CASE.num_steps,
            [group("sgd", [rate] * 2, keys, float(schedule == "cosine"))],
        )
        mean = {
            "mean": again.train_loss.mean(),
            "final": again.train_loss[:, -2:].mean(),
        }
        np.testing.assert_allclose(losses[where].min(), mean[metric], rtol=1e-4)


def test_results_are_kept_and_damaged_ones_made_again(tmp_path, key, monkeypatch):
    cache, keys = Cache(tmp_path), jax.random.split(key, 2)
    groups = [group("sgd", [0.1, 0.2], keys), group("adam", [0.1, 0.2], keys)]
    first = train_cached(TASK, 10, groups, cache)
    asked = []
    computed = runs.train

    def spy(task, num_steps, groups, *rest):
        asked.append([g.optimizer.name for g in groups])
        return computed(task, num_steps, groups, *rest)

    monkeypatch.setattr(runs, "train", spy)
    again = train_cached(TASK, 10, groups, cache)
    assert asked == []
    np.testing.assert_array_equal(again[0].train_loss, first[0].train_loss)
    train_cached(TASK, 10, [*groups, group("sgd", [0.1, 0.3], keys)], cache)
    assert asked == [["sgd"]]
    for path in tmp_path.iterdir():
        path.write_bytes(b"PK\x03\x04 cut off")
    train_cached(TASK, 10, groups, cache)
    assert asked[1:] == [["sgd", "adam"]]
    train_cached(TASK, 10, groups, cache)
    assert len(asked) == 2


def test_cache_key_covers_code_and_machine(monkeypatch):
    names, devices = {name_of(TASK)}, jax.devices()
    for target, value in {
        "evaluation.training.cache.source_hash": lambda: "other source",
        "evaluation.training.cache.native.is_available": lambda: "another path",
        "jax.devices": lambda: [*devices, *devices],
    }.items():
        with monkeypatch.context() as patch:
            patch.setattr(target, value)
            names.add(name_of(TASK))
    assert len(names) == 4


def test_times_are_cached_for_one_machine(tmp_path, monkeypatch):
    measured = []

    def timer():
        measured.append(platform.node())
        return StepCost(1.0, 2.0)

    monkeypatch.setattr(cases, "prepare_gradient", lambda *_: timer)
    found = [cases.CaseRuns(Case("x", TASK, 10, ""), {}, [], np.zeros((1, 1, 1)))]
    with ThreadPoolExecutor(1) as pool:
        for machine in ("one", "one", "two"):
            monkeypatch.setattr(platform, "node", lambda name=machine: name)
            cases._with_costs(found, {}, Cache(tmp_path), pool)
    assert measured == ["one", "two"]


def test_a_table_in_the_data_directory_is_part_of_the_name(tmp_path, monkeypatch):
    monkeypatch.setenv("LOPT_DATA_DIR", str(tmp_path))
    names = set()
    for name, file in {"yacht": "uci_yacht.csv", "mine.csv": "mine.csv"}.items():
        names.add(name_of(name))
        for content in ("1,2", "1,2,3"):
            (tmp_path / file).write_text(content)
            names.add(name_of(name))
    assert len(names) == 6


def test_cache_key_covers_the_settings(tmp_path, key):
    keys = jax.random.split(key, 2)
    one = group("sgd", [0.1, 0.2], keys)
    table = tmp_path / "table.csv"
    table.write_text("a,b\n1,2\n")
    names = [
        name_of(TASK, 10, one),
        name_of(TASK, 11, one),
        name_of(dataclasses.replace(TASK, dim=5), 10, one),
        name_of(TASK, 10, one._replace(keys=jax.random.split(keys[0], 2))),
        name_of(TASK, 10, group("sgd", [0.1, 0.3], keys)),
        name_of(TASK, 10, group("momentum", [0.1, 0.2], keys)),
        name_of(str(table)),
    ]
    table.write_text("a,b\n1,2\n3,4\n")
    assert len({*names, name_of(str(table))}) == 8
    assert name_of(TASK, 10, one) == names[0]
    # User-defined code may change under the same name, so it has no cache key.
    assert name_of(Fixed(optax.sgd(0.1))) is None

    @dataclasses.dataclass(frozen=True)
    class Own:
        size: int = 3

    assert name_of(Own()) is None
