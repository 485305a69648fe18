import json
import warnings

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors.numpy

import lopt
from lopt.files import format as file_format
from lopt.optimizers.mu_transfer import MuTransfer
from lopt.optimizers.per_parameter_mlp import PerParameterMLP
from lopt.registry import OPTIMIZERS
from meta_train.core.inner_training import InnerTraining
from tasks.supervised.mlp import MLP
from tasks.synthetic.quadratic import RandomQuadratic


@pytest.fixture
def saved(tmp_path, key):
    """Path of a saved optimizer, the optimizer and its theta."""
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


def test_card_contains_the_meta_training_tasks(saved):
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


@pytest.mark.parametrize(
    ("name", "task", "jit"),
    [
        *((name, RandomQuadratic(), True) for name in OPTIMIZERS),
        # Without jit, the steps are bitwise equal, one per kind of state.
        *((name, MLP(width=8), False) for name in ("LearnedMuon", "LearnedAdam")),
    ],
)
def test_loaded_optimizer_equals_inner_training(name, task, jit, tmp_path, key):
    """Steps equal those of inner training, through a file and `optax.chain`."""
    optimizer = OPTIMIZERS[name]()
    theta = optimizer.init_theta(key)
    path = tmp_path / "optimizer.safetensors"
    lopt.save(path, optimizer, theta)
    loose = optax.clip_by_global_norm(1e9)  # never active, so that steps are unchanged
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
    advance = jax.jit(system.step) if jit else system.step
    for i in range(3):
        x = system.sample_input(data, state, jax.random.fold_in(key, i))
        state, _ = advance(theta, state, x)
        params, opt_state = step(params, opt_state, x.train)
        if jit:
            chex.assert_trees_all_close(params, state.params, rtol=1e-6, atol=1e-6)
        else:
            chex.assert_trees_all_equal(params, state.params)


def rewrite(path, change):
    """Rewrite the file with a changed header or tensors and a valid checksum."""
    with safetensors.safe_open(path, framework="numpy") as file:
        header = json.loads(file.metadata()["lopt"])
        del header["sha256"]
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(header, tensors)
    header["sha256"] = file_format._checksum(header, tensors)
    path.write_bytes(safetensors.numpy.save(tensors, {"lopt": json.dumps(header)}))


def float8_file():
    """Build a file with a dtype that NumPy does not have."""
    tensor = {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}
    metadata = {"lopt": json.dumps({"format": 1})}
    header = json.dumps({"a": tensor, "__metadata__": metadata}).encode()
    return len(header).to_bytes(8, "little") + header + b"12"


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
        (
            lambda p: rewrite(p, lambda _, t: t.update({"params/bias_0": np.zeros(4)})),
            "do not fit its architecture",
        ),
        (
            lambda p: rewrite(p, lambda _, t: t["params/bias_0"].fill(np.nan)),
            "theta must be finite, and params/bias_0 is not",
        ),
        (
            lambda p: rewrite(p, lambda h, _: h.pop("hyperparameters")),
            "`hyperparameters` in its header must be a dict; got None",
        ),
        (
            lambda p: rewrite(p, lambda h, _: h.update(card=[])),
            "`card` in its header must be a dict",
        ),
        (
            lambda p: rewrite(p, lambda h, _: h.update(format="1")),
            "its header cannot be read",
        ),
        (
            lambda p: rewrite(p, lambda h, _: h["hyperparameters"].update(width="4")),
            "`width` of PerParameterMLP must be int; got '4'",
        ),
        (
            lambda p: rewrite(
                p, lambda h, _: h["hyperparameters"].update(step_scale=np.nan)
            ),
            "`step_scale` of PerParameterMLP must be float and finite; got nan",
        ),
        (
            lambda p: rewrite(p, lambda h, _: h["hyperparameters"].update(depth=10**9)),
            "`depth` must be at most 100: it has no more tensors",
        ),
        (
            lambda p: p.write_bytes(
                safetensors.numpy.save({}, {"lopt": "[" * 100_000})
            ),
            "its header cannot be read",
        ),
        (
            lambda p: p.write_bytes(p.read_bytes().replace(b"F32", b"I32")),
            "does not match its checksum",
        ),
        (
            lambda p: p.write_bytes(float8_file()),
            "must be a whole safetensors file",
        ),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(spoil, message, saved):
    spoil(saved[0])
    with pytest.raises(lopt.UserError, match=message) as error:
        lopt.load(saved[0], num_steps=10)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "num_steps", [0, -1, 10.5, np.nan, np.inf, jnp.zeros(()), 10**400]
)
def test_num_steps_must_be_a_positive_integer(num_steps, saved):
    with pytest.raises(lopt.UserError, match="must be an integer of at least 1"):
        lopt.load(saved[0], num_steps=num_steps)


def test_a_file_of_a_later_version_is_read_as_far_as_it_is_known(saved):
    path, optimizer, theta = saved

    def change(header, _):
        header["licence"] = "free"
        header["card"]["mood"] = ["good"]
        del header["hyperparameters"]["depth"]  # as in an earlier version

    rewrite(path, change)
    loaded, loaded_theta = lopt.load_theta(path)
    assert loaded == optimizer
    chex.assert_trees_all_equal(loaded_theta, theta)
    card = lopt.read_card(path)
    assert (card["licence"], card["mood"]) == ("free", ["good"])


def test_card_keys_do_not_override_the_header(saved):
    path, optimizer, theta = saved
    lopt.save(path, optimizer, theta, {"architecture": "Better", "num_parameters": 1})
    card = lopt.read_card(path)
    assert card["architecture"] == "PerParameterMLP"
    assert card["num_parameters"] == sum(x.size for x in jax.tree.leaves(theta))


def test_a_card_of_any_keys_has_the_checksum_that_its_reader_finds(saved):
    path, optimizer, theta = saved
    lopt.save(path, optimizer, theta, {"curve": {2: 0.5, 10: 0.1}, "pair": (1, 2)})
    assert lopt.read_card(path)["curve"] == {"2": 0.5, "10": 0.1}


def test_an_optimizer_within_another_is_given_back(tmp_path, key):
    optimizer = MuTransfer(PerParameterMLP(width=4), base_fan_in=4096)
    path = tmp_path / "optimizer.safetensors"
    lopt.save(path, optimizer, optimizer.init_theta(key))
    assert lopt.load_theta(path)[0] == optimizer


@pytest.mark.parametrize(
    ("spoil", "card", "message"),
    [
        (lambda x: x * jnp.nan, {}, "theta must be finite"),
        (lambda x: x[None], {}, "do not fit its architecture"),
        (lambda x: x, {"loss": jnp.nan}, "not JSON"),
        (lambda x: x, {"loss": object()}, "not JSON"),
    ],
)
def test_unreadable_theta_is_not_saved(spoil, card, message, saved):
    path, optimizer, theta = saved
    before = path.read_bytes()
    with pytest.raises(lopt.UserError, match=message):
        lopt.save(path, optimizer, jax.tree.map(spoil, theta), card)
    assert path.read_bytes() == before


@pytest.mark.parametrize("num_steps", [10, 10.0, jnp.asarray(10), jnp.asarray(10.0)])
def test_a_run_longer_than_it_was_trained_for_is_warned_of(num_steps, saved):
    with pytest.warns(UserWarning, match="for runs of 5 to 9 steps; got num_steps=10"):
        lopt.load(saved[0], num_steps=num_steps)
    with warnings.catch_warnings(record=True) as caught:
        lopt.load(saved[0], num_steps=9)
    assert not caught


def run(optimizer, params, num_steps):
    """Take `num_steps` steps; return the parameters and the state."""

    def body(carry, _):
        params, state = carry
        updates, state = optimizer.update(params, state, params, value=jnp.ones(()))
        return (optax.apply_updates(params, updates), state), None

    start = (params, optimizer.init(params))
    return jax.lax.scan(body, start, None, length=num_steps)[0]


def eagerly(optimizer, params, num_steps):
    state = optimizer.init(params)
    for _ in range(num_steps):
        _, state = optimizer.update(params, state, params, value=jnp.ones(()))
    return state


def compiled(optimizer, params, num_steps):
    return jax.jit(run, static_argnums=(0, 2))(optimizer, params, num_steps)


def vmapped(optimizer, params, num_steps):
    several = jax.tree.map(lambda x: jnp.stack([x, x]), params)
    return jax.jit(jax.vmap(lambda x: run(optimizer, x, num_steps)))(several)


def vmapped_eagerly(optimizer, params, num_steps):
    several = jax.tree.map(lambda x: jnp.stack([x, x]), params)
    return jax.vmap(lambda x: eagerly(optimizer, x, num_steps))(several)


def sharded(optimizer, params, num_steps):
    mesh, everywhere = jax.make_mesh((1,), ("i",)), jax.sharding.PartitionSpec()
    function = lambda x: run(optimizer, x, num_steps)
    return jax.jit(
        jax.shard_map(function, mesh=mesh, in_specs=everywhere, out_specs=everywhere)
    )(params)


def differentiated(optimizer, params, num_steps):
    loss = lambda x: run(optimizer, x, num_steps)[0]["w"].sum()
    return jax.jit(jax.grad(loss))(params)


def injected(_, params, num_steps):
    make = optax.inject_hyperparams(lopt.load, static_args="path")
    return compiled(make(path=injected.path, num_steps=5), params, num_steps)


WAYS = [
    *(eagerly, compiled, vmapped, vmapped_eagerly, sharded, differentiated, injected)
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["PerParameterMLP", "ScheduledSGD"])
def test_an_update_past_the_last_step_is_warned_of_once(name, way, tmp_path, key):
    path = tmp_path / "optimizer.safetensors"
    lopt.save(path, OPTIMIZERS[name](), OPTIMIZERS[name]().init_theta(key))
    injected.path = path
    params = {"w": jnp.ones((2, 3)), "count": jnp.ones(2)}
    optimizer = lopt.load(path, num_steps=5)

    jax.block_until_ready(way(optimizer, params, 5))
    jax.effects_barrier()
    with warnings.catch_warnings(record=True, action="always") as caught:
        jax.block_until_ready(way(optimizer, params, 8))
        jax.block_until_ready(way(optimizer, params, 7))
        jax.effects_barrier()
    (warning,) = [x for x in caught if x.category is UserWarning]
    assert f"{path} was called more than num_steps=5 times" in str(warning.message)


def test_finished_runs_are_named_under_vmap(saved):
    run_for = lambda n: run(lopt.load(saved[0], n), {"w": jnp.ones(2)}, 4)

    def run_both():
        jax.block_until_ready(jax.jit(jax.vmap(run_for))(jnp.array([3, 9])))
        jax.effects_barrier()

    with pytest.warns(UserWarning, match="more than num_steps=3 times") as caught:
        run_both()
    assert not any("num_steps=9" in str(warning.message) for warning in caught)


def test_the_state_is_that_of_the_optimizer(saved):
    path, optimizer, theta = saved
    params = {"w": jnp.ones((2, 3))}
    loaded = lopt.load(path, num_steps=5)
    plain = optimizer.as_optax(theta, 5)
    assert isinstance(loaded, optax.GradientTransformationExtraArgs)
    chex.assert_trees_all_equal(run(loaded, params, 4), run(plain, params, 4))
    # Meta-training must not call back to the host.
    assert not jax.make_jaxpr(lambda p: run(plain, p, 4))(params).effects


def test_a_scalar_theta_can_be_saved(tmp_path):
    names = [name for name, _ in file_format.named_leaves(jnp.ones(()))]
    assert names == ["theta"]
