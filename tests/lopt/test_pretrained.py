"""Pretrained optimizers: lookup by name, training, cards and load options."""

import warnings

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import lopt
from lopt.pretrained import resolve

NAMES = list(lopt.list_pretrained())
every_name = pytest.mark.parametrize("name", NAMES)


def updates_of(tx, params, num_steps=1):
    state, updates, update = tx.init(params), None, jax.jit(tx.update)
    for _ in range(num_steps):
        updates, state = update(params, state, params, value=jnp.float32(1.0))
    return updates


PARAMS = {"kernel": jnp.linspace(-1.0, 2.0, 6).reshape(2, 3), "bias": jnp.ones(3)}


@every_name
def test_a_shipped_optimizer_loads_and_trains_without_any_path(name):
    assert lopt.list_pretrained()[name].is_file()
    card = lopt.read_card(name)
    tx = lopt.load(name, num_steps=card["horizons"][1])
    loss = lambda params: sum(jnp.sum(x**2) for x in jax.tree.leaves(params))

    @jax.jit
    def step(carry, _):
        params, state = carry
        value, grads = jax.value_and_grad(loss)(params)
        updates, state = tx.update(grads, state, params, value=value)
        return (optax.apply_updates(params, updates), state), value

    carry = PARAMS, tx.init(PARAMS)
    (params, _), _ = jax.lax.scan(step, carry, length=card["horizons"][1])
    assert loss(params) < 1e-3 * loss(PARAMS)


@every_name
def test_card_of_a_shipped_optimizer_is_complete(name):
    card = lopt.read_card(name)
    for entry in ("tasks", "task_names", "horizons", "validation_tasks", "seed"):
        assert card[entry] is not None
    assert set(card["task_names"]).isdisjoint(card["validation_tasks"])


def test_an_unknown_name_is_answered_with_the_nearest_and_the_list():
    with pytest.raises(
        lopt.UserError, match=r"Did you mean 'general-1'\? Shipped: gen"
    ):
        lopt.load("genral-1", num_steps=10)
    with pytest.raises(lopt.UserError, match=r"got 'xyz'\. Shipped: general-1"):
        lopt.load("xyz", num_steps=10)
    # A name with a suffix or a directory is a path.
    with pytest.raises(lopt.UserError, match="must be a file written by"):
        lopt.load("general-1.safetensors", num_steps=10)


def test_a_file_comes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve("general-1") == lopt.list_pretrained()["general-1"]
    (tmp_path / "general-1").write_bytes(b"")
    assert resolve("general-1").resolve() == tmp_path / "general-1"


def test_horizons_outside_those_of_training_are_warned_of():
    shortest, longest = lopt.read_card("general-1")["horizons"]
    found = {}
    for num_steps in (shortest // 2 - 1, longest, 100 * longest):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            lopt.load("general-1", num_steps=num_steps)
        found[num_steps] = [str(warning.message) for warning in caught]
    assert found.pop(longest) == []
    for num_steps, (message,) in found.items():
        assert f"for runs of {shortest} to {longest} steps" in message
        assert f"num_steps={num_steps}" in message


def test_num_steps_must_be_given():
    with pytest.raises(lopt.UserError, match=r"`num_steps` must be given.*Try"):
        lopt.load("general-1")


def test_the_learning_rate_scale_scales_updates():
    plain = updates_of(lopt.load("general-1", 100), PARAMS)
    half = updates_of(lopt.load("general-1", 100, learning_rate_scale=0.5), PARAMS)
    chex.assert_trees_all_close(half, jax.tree.map(lambda x: 0.5 * x, plain))


def test_weight_decay_shrinks_matrices_and_is_annealed():
    plain = lopt.load("general-1", 100)
    decayed = lopt.load("general-1", 100, weight_decay=0.01)
    for num_steps in (1, 51):
        one = updates_of(plain, PARAMS, num_steps)
        other = updates_of(decayed, PARAMS, num_steps)
        left = 1 - (num_steps - 1) / 100
        expected = -0.01 * left * np.asarray(PARAMS["kernel"])
        found = np.asarray(other["kernel"] - one["kernel"])
        np.testing.assert_allclose(found, expected, atol=1e-6)
        np.testing.assert_array_equal(other["bias"], one["bias"])


@pytest.mark.parametrize(
    "knobs",
    [
        {"learning_rate_scale": 0.0},
        {"learning_rate_scale": -1.0},
        {"weight_decay": 1.0},
    ],
)
def test_knobs_out_of_range_are_refused(knobs):
    with pytest.raises(lopt.UserError, match=rf"`{next(iter(knobs))}` must be"):
        lopt.load("general-1", 100, **knobs)
