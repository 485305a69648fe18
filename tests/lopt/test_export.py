import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors.numpy

import lopt
from lopt import export
from lopt.mlp import PerParameterMLP
from lopt.registry import OPTIMIZERS
from meta_train.inner_training import InnerTraining
from tasks.mlp import MLP
from tasks.quadratic import RandomQuadratic


@pytest.fixture
def saved(tmp_path, key):
    """A file, and what was saved in it."""
    optimizer = PerParameterMLP(width=4, second_moment_decays=(0.99,))
    theta = optimizer.init_theta(key)
    path = tmp_path / "optimizer.safetensors"
    lopt.save(path, optimizer, theta, {"tasks": ["digits"], "horizons": [5, 9]})
    return path, optimizer, theta


def test_a_file_gives_back_what_was_saved(saved):
    path, optimizer, theta = saved
    loaded, loaded_theta = lopt.load_theta(path)
    assert loaded == optimizer
    chex.assert_trees_all_equal(loaded_theta, theta)


def test_the_card_says_what_it_was_trained_on(saved):
    card = lopt.read_card(saved[0])
    assert card["format"] == 1
    assert card["architecture"] == "PerParameterMLP"
    assert card["hyperparameters"]["width"] == 4
    assert card["horizons"] == [5, 9]
    assert card["tasks"] == ["digits"]
    assert card["versions"]["jax"] == jax.__version__
    assert card["num_parameters"] == sum(x.size for x in jax.tree.leaves(saved[2]))


def test_saving_twice_writes_the_same_bytes(saved):
    path, optimizer, theta = saved
    before = path.read_bytes()
    lopt.save(path, optimizer, theta, {"tasks": ["digits"], "horizons": [5, 9]})
    assert path.read_bytes() == before


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("task", [RandomQuadratic(), MLP(width=8)])
def test_what_loads_takes_the_meta_trained_steps(name, task, jit, tmp_path, key):
    """The very function inner training used, through a file and `optax.chain`."""
    optimizer = OPTIMIZERS[name]()
    theta = optimizer.init_theta(key)
    path = tmp_path / "optimizer.safetensors"
    lopt.save(path, optimizer, theta)
    loose = optax.clip_by_global_norm(1e9)  # never bites: the steps must be the same
    exported = optax.chain(loose, lopt.load(path, num_steps=10))
    system = InnerTraining(task, optimizer)
    data = system.load()
    state = system.init_state(theta, data, 10, key)

    def step(params, opt_state, batch):
        value, grads = jax.value_and_grad(task.loss)(params, batch)
        updates, opt_state = exported.update(grads, opt_state, params, value=value)
        return optax.apply_updates(params, updates), opt_state

    params, opt_state = state.params, exported.init(state.params)
    step = jax.jit(step) if jit else step
    for i in range(3):
        x = system.sample_input(data, state, jax.random.fold_in(key, i))
        state, _ = system.step(theta, state, x)
        params, opt_state = step(params, opt_state, x.train)
        if jit:
            chex.assert_trees_all_close(params, state.params, rtol=1e-6, atol=1e-6)
        else:
            chex.assert_trees_all_equal(params, state.params)


def rewrite(path, change):
    """Writes the file again with another header, and a checksum that fits it."""
    with safetensors.safe_open(path, framework="numpy") as file:
        header = json.loads(file.metadata()["lopt"])
        del header["sha256"]
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(header, tensors)
    header["sha256"] = export._checksum(header, tensors)
    path.write_bytes(safetensors.numpy.save(tensors, {"lopt": json.dumps(header)}))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p: p.unlink(), "there is none"),
        (lambda p: p.write_bytes(p.read_bytes()[:-10]), "may be truncated"),
        (lambda p: p.write_bytes(b""), "may be truncated"),
        (lambda p: p.write_text("not a safetensors file"), "whole safetensors file"),
        (
            lambda p: p.write_bytes(safetensors.numpy.save({"a": np.zeros(3)})),
            "not an optimizer of lopt",
        ),
        (
            lambda p: p.write_bytes(p.read_bytes()[:-1] + b"\x07"),
            "does not match its checksum",
        ),
        (
            lambda p: p.write_bytes(
                p.read_bytes().replace(b'format\\": 1', b'format\\": 9')
            ),
            "has format 9; this version of lopt reads up to 1",
        ),
        (
            lambda p: p.write_bytes(
                p.read_bytes().replace(b'{\\"format', b'?\\"format')
            ),
            "its header cannot be read",
        ),
        (
            lambda p: rewrite(p, lambda h, _: h.update(architecture="Alien")),
            "'Alien' is not known to this version of lopt",
        ),
        (
            lambda p: rewrite(p, lambda h, _: h["hyperparameters"].update(width=-3)),
            "`width` and `depth` must be at least 1",
        ),
        (
            lambda p: rewrite(p, lambda h, _: h["hyperparameters"].update(shoe=42)),
            "PerParameterMLP has no shoe",
        ),
        (
            lambda p: rewrite(p, lambda h, _: h["hyperparameters"].update(width=5)),
            "do not fit its architecture",
        ),
        (
            lambda p: rewrite(p, lambda _, t: t.popitem()),
            "do not fit its architecture",
        ),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(spoil, message, saved):
    spoil(saved[0])
    with pytest.raises(lopt.UserError, match=message) as error:
        lopt.load(saved[0], num_steps=10)
    assert "\n" not in str(error.value)


def test_a_run_of_no_steps_is_refused(saved):
    with pytest.raises(lopt.UserError, match="`num_steps` must be at least 1"):
        lopt.load(saved[0], num_steps=0)


def test_a_scalar_theta_can_be_saved(tmp_path):
    names = [name for name, _ in export._named_leaves(jnp.ones(()))]
    assert names == ["theta"]
