"""Recurrent optimizers equal their NumPy definitions and descend untrained."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lopt.optimizers.coordinate_lstm import CoordinateLSTM
from lopt.optimizers.hierarchical_rnn import HierarchicalRNN
from lopt.optimizers.hyper_lstm import HyperLSTM

OPTIMIZERS = [CoordinateLSTM(), HierarchicalRNN(), HyperLSTM()]
every_optimizer = pytest.mark.parametrize(
    "optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__name__
)
PARAMS = {
    "b": jnp.asarray([0.5, -1.0, 2.0]),
    "s": jnp.asarray(0.7),
    "w": jnp.arange(6.0).reshape(2, 3) - 2.2,
}
SHAPES = [(3,), (1,), (2, 3)]
NUM_STEPS = 20


def count(tree):
    return sum(x.size for x in jax.tree.leaves(tree))


@functools.cache
def theta_of(optimizer):
    return jax.jit(optimizer.init_theta)(jax.random.key(0))


@functools.cache
def bound(optimizer):
    """Bind theta; return `init` and a compiled `update`, shared by all tests."""
    tx = optimizer.as_optax(theta_of(optimizer), NUM_STEPS)
    return tx.init, jax.jit(tx.update)


def random_like(seed, tree, scale=1.0):
    generator = np.random.default_rng(seed)
    draw = lambda x: scale * generator.standard_normal(x.shape).astype(np.float32)
    return jax.tree.map(draw, tree)


def arrays(tree):
    """Convert a pytree to NumPy arrays in double precision."""
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def as_tensors(tree):
    """List leaves as update rules see them: scalars are vectors of length one."""
    return [x.reshape(x.shape or (1,)) for x in jax.tree.leaves(arrays(tree))]


def define_lstm(theta):
    weights = theta["params"]
    states = [np.zeros((4, 20, *shape)) for shape in SHAPES]

    def one(g, state):
        is_large = np.abs(g) >= np.exp(-5)
        log = np.log(np.where(is_large, np.abs(g), 1.0)) / 5
        top = np.stack(
            [
                np.where(is_large, log, -1),
                np.where(is_large, np.sign(g), np.exp(5) * g),
            ]
        )
        for i in range(2):
            kernel, bias = (weights[f"lstm_{i}"][k] for k in ("kernel", "bias"))
            below = np.concatenate([top, state[2 * i]])
            gates = np.einsum("ig,i...->g...", kernel, below)
            gates += bias.reshape(-1, *[1] * g.ndim)
            new, write, keep, read = gates.reshape(4, 20, *g.shape)
            memory = sigmoid(keep) * state[2 * i + 1] + sigmoid(write) * np.tanh(new)
            top = sigmoid(read) * np.tanh(memory)
            state[2 * i], state[2 * i + 1] = top, memory
        out = np.einsum("i,i...->...", weights["kernel"][:, 0], top) + weights["bias"]
        return 0.01 * out

    def step(t, grads, params, loss):
        return [one(g, state) for g, state in zip(grads, states, strict=True)]

    return step


def define_hierarchy(theta):
    weights = theta["params"]
    # State of each tensor by name; hidden units are on the last axis.
    states = [
        {
            "momenta": np.zeros((4, *shape)),
            "squares": np.zeros((4, *shape)),
            "log_rate": np.zeros(shape),
            "hidden": np.tile(weights["initial_parameter"][:, 0], (*shape, 1)),
            "tensor": weights["initial_tensor"][:, 0],
            "decay": np.zeros(shape),
            "scale_decay": np.zeros(shape),
        }
        for shape in SHAPES
    ]
    whole = weights["initial_whole"][:, 0]

    def gru(name, x, hidden, from_above):
        cell, width = weights[name], hidden.shape[-1]
        drive = x @ cell["kernel"] + cell["bias"] + from_above
        recurrent = cell["recurrent"]
        reset = sigmoid(drive[..., :width] + hidden @ recurrent[:, :width])
        keep = sigmoid(
            drive[..., width : 2 * width] + hidden @ recurrent[:, width : 2 * width]
        )
        new = drive[..., 2 * width :] + (reset * hidden) @ recurrent[:, 2 * width :]
        return keep * hidden + (1 - keep) * np.tanh(new)

    def one(g, state):
        decays = np.stack([state["decay"] ** (1 / 2**i) for i in range(4)])
        state["momenta"] = decays * state["momenta"] + (1 - decays) * g
        squares, decay = state["momenta"] ** 2, state["scale_decay"]
        state["squares"] = decay * state["squares"] + (1 - decay) * squares
        scaled = state["momenta"] / np.sqrt(state["squares"] + 1e-16)
        logs = np.log(state["squares"] + 1e-16)
        rate = state["log_rate"]
        x = [*scaled, *(scaled[:-1] * scaled[1:]), *(logs - logs.mean(0))]
        x = np.stack([*x, rate - rate.mean()], axis=-1)
        bias = state["tensor"] @ weights["tensor_to_parameter"]
        bias = bias + whole @ weights["whole_to_parameter"]
        hidden = gru("parameter", x, state["hidden"], bias)
        below = np.concatenate([hidden, x], -1).reshape(g.size, -1).mean(0)
        bias = whole @ weights["whole_to_tensor"]
        outputs = hidden @ weights["output_kernel"] + weights["output_bias"]
        direction = outputs[..., 0] + np.einsum(
            "i,i...->...", theta["shortcut"], scaled
        )
        direction /= np.sqrt(np.mean(direction**2) + 1e-16)
        new_rate = np.clip(rate + outputs[..., 1], -10, 10)
        keep = sigmoid(theta["log_rate_logit"])
        state.update(
            hidden=hidden,
            tensor=gru("tensor", below, state["tensor"], bias),
            log_rate=keep * rate + (1 - keep) * new_rate,
            decay=sigmoid(outputs[..., 2]),
            scale_decay=sigmoid(outputs[..., 3]),
        )
        return -np.exp(theta["initial_log_rate"] + new_rate) * direction

    def step(t, grads, params, loss):
        nonlocal whole
        steps = [one(g, state) for g, state in zip(grads, states, strict=True)]
        mean = np.mean([state["tensor"] for state in states], axis=0)
        whole = gru("whole", mean, whole, 0.0)
        return steps

    return step


def define_hypernetwork(theta):
    weights, banks = theta["network"]["params"], theta["banks"]["params"]
    decays = np.array([0.9, 0.99, 0.999])
    half_lives = np.logspace(1, np.log10(NUM_STEPS), 10)
    loss_decays = 0.5 ** (1 / half_lives)
    sums, minima = np.zeros(10), np.full(10, np.inf)
    momenta = [np.zeros((3, *shape)) for shape in SHAPES]
    second = [np.zeros(shape) for shape in SHAPES]
    rows = [np.zeros((3, *shape[:1])) for shape in SHAPES]
    cols = [np.zeros((3, *shape[-1:])) for shape in SHAPES]
    hidden, memory = (np.tile(x, (3, 1)) for x in weights["initial"])

    def linear(name, x):
        return x @ weights[name]["kernel"] + weights[name]["bias"]

    def trend(t, loss):
        nonlocal sums, minima
        sums = loss_decays * sums + (1 - loss_decays) * loss
        means = sums / (1 - loss_decays ** (t + 1))
        minima = np.minimum(minima, means)
        floor = 1e-8 + 1e-6 * np.abs(means[1:])
        span = np.maximum(means[1:] - minima[:-1], floor)
        features = np.clip((means[:-1] - minima[:-1]) / span - 1, -1, 1)
        return features if t >= 2 else np.zeros(9)

    def accumulate(i, g):
        each = lambda old, new: np.stack(
            [d * o + (1 - d) * new for d, o in zip(decays, old, strict=True)]
        )
        momenta[i] = each(momenta[i], g)
        second[i] = 0.999 * second[i] + 0.001 * g**2
        squares = g**2 + 1e-30
        rows[i] = each(rows[i], squares if g.ndim == 1 else squares.mean(1))
        cols[i] = each(cols[i], squares if g.ndim == 1 else squares.mean(0))

    def statistics(i, p):
        rms = np.sqrt(np.mean(p**2) + 1e-9)
        m, v = momenta[i].reshape(3, -1) / rms, second[i] / rms
        numbers = np.array([*m.var(1), v.mean(), v.var(), rms])
        logs = np.clip(np.log(1e-8 + np.abs(10 * numbers)), -5, 5) * 0.5
        rank = [1, 0, 2][i]
        return np.concatenate([logs, [np.log(p.size) / 10], np.eye(5)[rank]])

    def features(i, g, p):
        root = 1 / np.sqrt(second[i] + 1e-6)
        if g.ndim == 1:
            row = col = rows[i]
            factor = 1 / np.sqrt(np.maximum(rows[i], 1e-9))
        else:
            row, col = rows[i][:, :, None] + 0 * g, cols[i][:, None, :] + 0 * g
            relative = row / (rows[i].mean(1)[:, None, None] + 1e-9)
            factor = 1 / np.sqrt(np.maximum(relative, 1e-9))
            factor = factor / np.sqrt(np.maximum(col, 1e-9))
        found = [g, np.clip(g, -0.1, 0.1), p, *momenta[i], second[i]]
        found += [*(momenta[i] * root), root, g * root, *(g * factor), *row, *col]
        found += [*(row + 1e-8) ** -0.5, *(col + 1e-8) ** -0.5, *(momenta[i] * factor)]
        found = np.stack(found).reshape(30, -1)
        return found / np.sqrt(1e-5 + (found**2).mean(1, keepdims=True))

    def step(t, grads, params, loss):
        nonlocal hidden, memory
        grads = [np.clip(g, -1000, 1000) for g in grads]
        shares = np.array([0.03, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.1])
        run = [np.tanh(10 * (t / NUM_STEPS - shares)), trend(t, loss)]
        for i, g in enumerate(grads):
            accumulate(i, g)
        x = np.stack(
            [np.concatenate([*run, statistics(*ip)]) for ip in enumerate(params)]
        )
        x = (
            linear("own", x)
            + np.maximum(linear("largest", x), 0).max(0)
            + np.maximum(linear("mean", x), 0).mean(0)
        )
        gate = lambda name: (
            x @ weights["lstm"][f"i{name}"]["kernel"]
            + hidden @ weights["lstm"][f"h{name}"]["kernel"]
            + weights["lstm"][f"h{name}"]["bias"]
        )
        memory = sigmoid(gate("f")) * memory + sigmoid(gate("i")) * np.tanh(gate("g"))
        hidden = sigmoid(gate("o")) * np.tanh(memory)
        controls, sizes = linear("controls", hidden), linear("step_size", hidden)
        steps = []
        for i, (g, p) in enumerate(zip(grads, params, strict=True)):
            y = features(i, g, p)
            for layer in range(3):
                mixed = [
                    np.sqrt(16)
                    * np.mean(
                        [c * b for c, b in zip(controls[i], bank, strict=True)], axis=0
                    )
                    for bank in (banks[f"kernel_{layer}"], banks[f"bias_{layer}"])
                ]
                y = mixed[0].T @ y + mixed[1][:, None]
                y = np.maximum(y, 0) if layer < 2 else y
            rms = np.sqrt(np.mean(p**2) + 1e-9)
            size = sizes[i, 0] * 1e-3 * rms
            steps.append(-size * (y[0] * np.exp(1e-3 * y[1])).reshape(p.shape))
        return steps

    return step


@pytest.mark.parametrize(
    ("optimizer", "define"),
    [
        (CoordinateLSTM(), define_lstm),
        (HierarchicalRNN(), define_hierarchy),
        (HyperLSTM(), define_hypernetwork),
    ],
    ids=["CoordinateLSTM", "HierarchicalRNN", "HyperLSTM"],
)
def test_it_equals_its_definition_in_numpy(optimizer, define):
    # Perturb all weights, as some have special values before training.
    theta = jax.tree.map(np.asarray, theta_of(optimizer))
    theta = jax.tree.map(np.add, theta, random_like(0, theta, 0.1))
    theta = jax.tree.map(jnp.asarray, theta)
    tx = optimizer.as_optax(theta, NUM_STEPS)
    update, step = jax.jit(tx.update), define(arrays(theta))
    params, state, numpy_params = PARAMS, tx.init(PARAMS), as_tensors(PARAMS)
    for t in range(NUM_STEPS):
        # Several magnitudes, as features treat small and large gradients differently.
        grads = random_like(t, PARAMS, 10.0 ** (t % 5 - 3))
        loss = 2.0 + np.cos(3.0 * t) - 0.05 * t
        updates, state = update(grads, state, params, value=jnp.asarray(loss))
        params = optax.apply_updates(params, updates)
        steps = step(t, as_tensors(grads), numpy_params, loss)
        numpy_params = [p + d for p, d in zip(numpy_params, steps, strict=True)]
    for ours, theirs in zip(as_tensors(params), numpy_params, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (CoordinateLSTM(), 5_141),
        (HierarchicalRNN(), 8_230),
        (HyperLSTM(), 14_465),
        (HyperLSTM(lstm_width=512, num_banks=256), 2_320_385),
    ],
)
def test_number_of_parameters(optimizer, expected, key):
    assert count(jax.eval_shape(optimizer.init_theta, key)) == expected


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (CoordinateLSTM(), 80 * 600),
        (HierarchicalRNN(), 21 * 600),
        (HyperLSTM(), 4 * 600 + 3 * (20 + 30)),
    ],
    ids=["CoordinateLSTM", "HierarchicalRNN", "HyperLSTM"],
)
def test_floats_of_state(optimizer, expected):
    init, _ = bound(optimizer)
    state = jax.eval_shape(init, jnp.ones((20, 30)))
    leaves = jax.tree.leaves(state.tensors)
    floats = [x for x in leaves if x.dtype != jnp.bool_]
    assert count(floats) == expected
    assert all(x.dtype == jnp.float32 for x in floats)


@every_optimizer
def test_it_descends_untrained(optimizer, key):
    def ratio(key):
        keys = jax.random.split(key, 4)
        axes, _ = jnp.linalg.qr(jax.random.normal(keys[0], (10, 10)))
        curvature = (axes * jnp.logspace(0, 1, 10)[None]) @ axes.T
        goal, start = jax.random.normal(keys[1], (2, 10))
        loss = lambda p: 0.5 * (p - goal) @ curvature @ (p - goal)
        tx = optimizer.as_optax(optimizer.init_theta(keys[2]), num_steps=200)

        def step(carry, _):
            params, state = carry
            value, grad = jax.value_and_grad(loss)(params)
            updates, state = tx.update(grad, state, params, value=value)
            return (optax.apply_updates(params, updates), state), None

        carry = start, tx.init(start)
        (params, _), _ = jax.lax.scan(step, carry, length=200)
        return loss(params) / loss(start)

    # Sequential, as batches of QR factorizations can deadlock.
    ratios = jax.jit(lambda keys: jax.lax.map(ratio, keys))(jax.random.split(key, 8))
    assert ratios.max() < 0.3
    assert jnp.median(ratios) < 0.1


def test_the_first_step_is_over_where_the_horizon_is_one():
    def after_two_steps(optimizer, num_steps):
        tx = optimizer.as_optax(theta_of(optimizer), num_steps)
        state = tx.init(PARAMS)
        for seed in range(2):
            grads = random_like(seed, PARAMS)
            _, state = jax.jit(tx.update)(grads, state, PARAMS, value=seed + 1.0)
        return state

    short, long = (after_two_steps(HierarchicalRNN(), n) for n in (1, 20))
    for x, y in zip(jax.tree.leaves(short), jax.tree.leaves(long), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)
    trend = after_two_steps(HyperLSTM(), 1).shared.trend
    np.testing.assert_allclose(trend.minima, 1.0)
    assert trend.means.min() > 1.4


@every_optimizer
def test_gradients_may_be_missing(optimizer):
    init, update = bound(optimizer)
    state, value = init(PARAMS), jnp.ones(())
    updates, after = update({**PARAMS, "b": None}, state, PARAMS, value=value)
    assert updates["b"] is None
    assert jnp.abs(updates["w"]).min() > 0
    assert jax.tree.structure(after) == jax.tree.structure(state)
    none = dict.fromkeys(PARAMS)
    assert update(none, state, PARAMS, value=value)[0] == none
    assert update({}, init({}), {}, value=value)[0] == {}


@every_optimizer
def test_its_steps_have_derivatives(optimizer):
    vector = PARAMS["b"]
    grads = jnp.stack([jnp.zeros(3), vector, vector])

    def total(theta):
        tx = optimizer.as_optax(theta, NUM_STEPS)

        def step(carry, grad):
            params, state = carry
            updates, state = tx.update(grad, state, params, value=jnp.ones(()))
            return (optax.apply_updates(params, updates), state), None

        (params, _), _ = jax.lax.scan(step, (vector, tx.init(vector)), grads)
        return params.sum()

    derivatives = jax.jit(jax.grad(total))(theta_of(optimizer))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(derivatives))


def test_a_loss_that_is_no_number_is_forgotten():
    init, update = bound(HyperLSTM())
    vector = PARAMS["b"]
    state = init(vector)
    for loss in (1.0, np.inf, np.nan, 0.5):
        updates, state = update(vector, state, vector, value=jnp.asarray(loss))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((updates, state)))


def test_missing_loss_names_the_remedy():
    init, update = bound(HyperLSTM())
    with pytest.raises(ValueError, match=r"state, params, value=loss\)"):
        update(PARAMS, init(PARAMS), PARAMS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CoordinateLSTM(width=0), "`width` must be at least 1"),
        (lambda: HierarchicalRNN(tensor_width=0), r"got \(10, 0, 20\)"),
        (lambda: HierarchicalRNN(initial_lr=0.0), "`initial_lr` must be positive"),
        (lambda: HyperLSTM(num_banks=0), "`num_banks` must be at least 1"),
    ],
)
def test_bad_hyperparameters_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
