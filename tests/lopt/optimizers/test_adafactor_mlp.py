"""Optimizers with Adafactor features equal their NumPy definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lopt.optimizers.adafactor_mlp import AdafactorMLP
from lopt.optimizers.features import factored_axes
from lopt.optimizers.normalized_mlp import NormalizedMLP, orthogonalized

SHAPES = {"w": (4, 3), "conv": (2, 5, 1, 6), "b": (3,), "s": ()}
NUM_STEPS = 20
SCALES = np.array([1, 3, 10, 30, 100, 300, 1e3, 3e3, 1e4, 3e4, 1e5])


def draw(key):
    keys = jax.random.split(key, len(SHAPES))
    return {
        name: jax.random.normal(k, shape)
        for k, (name, shape) in zip(keys, SHAPES.items(), strict=True)
    }


def rsqrt(x):
    return 1 / np.sqrt(x)


class Moments:
    """Accumulators of one tensor, updated by their definition."""

    def __init__(self, shape, beta_m, beta_v, beta_f):
        self.betas = (beta_m, beta_v, beta_f)
        self.m = [np.zeros(shape) for _ in range(3)]
        self.v = np.zeros(shape)
        self.row, self.col = [0.0] * 3, [0.0] * 3

    def update(self, g):
        beta_m, beta_v, beta_f = self.betas
        self.m = [b * m + (1 - b) * g for b, m in zip(beta_m, self.m, strict=True)]
        self.v = beta_v * self.v + (1 - beta_v) * g**2
        squares = g**2 + 1e-30
        for i, b in enumerate(beta_f):
            if g.ndim == 1:
                row = col = squares
            else:
                r, c = sorted(np.argsort(g.shape, kind="stable")[-2:])
                row, col = (
                    squares.mean(c, keepdims=True),
                    squares.mean(r, keepdims=True),
                )
            self.row[i] = b * self.row[i] + (1 - b) * row
            self.col[i] = b * self.col[i] + (1 - b) * col

    def scaled(self, x, i):
        row, col = self.row[i], self.col[i]
        if x.ndim == 1:
            return x * rsqrt(np.maximum(row, 1e-9))
        r, _ = sorted(np.argsort(x.shape, kind="stable")[-2:])
        mean = row.mean(int(r), keepdims=True)
        row_factor = rsqrt(np.maximum(row / (mean + 1e-9), 1e-9))
        return x * row_factor * rsqrt(np.maximum(col, 1e-9))

    def features(self, g, p, extended):
        root = rsqrt(self.v + 1e-6)
        rows = [g, *([np.clip(g, -0.1, 0.1)] if extended else []), p, *self.m, self.v]
        rows += [*(m * root for m in self.m), root]
        rows += [g * root] if extended else []
        rows += [self.scaled(g, i) for i in range(3)]
        rows += [*self.row, *self.col]
        rows += [rsqrt(x + 1e-8) for x in (*self.row, *self.col)]
        rows += [self.scaled(m, i) for i, m in enumerate(self.m)]
        full = np.stack([np.broadcast_to(x, g.shape).reshape(-1) for x in rows])
        return full * rsqrt(1e-5 + (full**2).mean(1, keepdims=True))


def network(weights, x):
    num_layers = len(weights) // 2
    for i in range(num_layers):
        x = weights[f"kernel_{i}"].T @ x + weights[f"bias_{i}"][:, None]
        x = np.maximum(x, 0) if i < num_layers - 1 else x
    return x[0] * np.exp(1e-3 * x[1])


def assert_steps_are(optimizer, theta, key, make_moments, step):
    """Compare the optimizer with `step`, a NumPy definition in double precision."""
    transformation = optimizer.as_optax(theta, NUM_STEPS)
    params = draw(key)
    state = transformation.init(params)
    update = jax.jit(transformation.update)
    numpy = {k: np.atleast_1d(np.asarray(x, np.float64)) for k, x in params.items()}
    moments = {k: make_moments(x.shape) for k, x in numpy.items()}
    for t in range(NUM_STEPS):
        grads = draw(jax.random.fold_in(key, t))
        updates, state = update(grads, state, params)
        params = optax.apply_updates(params, updates)
        for k, p in numpy.items():
            g = np.atleast_1d(np.asarray(grads[k], np.float64))
            moments[k].update(g)
            numpy[k] = p + step(moments[k], g, p, t)
    for k, x in params.items():
        expected = numpy[k].reshape(x.shape)
        np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("width", [4, 32])
def test_the_adafactor_mlp(width, key):
    optimizer = AdafactorMLP(width=width)
    theta = optimizer.init_theta(key)
    offsets = {
        "momenta": [0.01, -0.02, 0.03],
        "second_moment": [-0.01],
        "factored": [0.02, 0.01, -0.03],
    }
    theta["decays"] = {k: jnp.asarray(x, jnp.float32) for k, x in offsets.items()}
    weights = {
        k: np.asarray(x, np.float64) for k, x in theta["network"]["params"].items()
    }
    beta = lambda b0, d: 1 - np.exp(10 * (np.log(1 - b0) / 10 + d))
    slow = np.array([0.9, 0.99, 0.999])
    betas = (
        beta(slow, offsets["momenta"]),
        beta(0.999, offsets["second_moment"][0]),
        beta(slow, offsets["factored"]),
    )

    def step(moments, g, p, t):
        time = np.tanh(t / SCALES - 1)[:, None].repeat(g.size, axis=1)
        x = np.concatenate([moments.features(g, p, extended=False), time])
        return -1e-3 * network(weights, x).reshape(g.shape)

    assert_steps_are(optimizer, theta, key, lambda s: Moments(s, *betas), step)


@pytest.mark.parametrize("orthogonalize", [False, True])
def test_the_normalized_mlp(orthogonalize, key):
    optimizer = NormalizedMLP(
        orthogonalize=orthogonalize, learning_rate=0.01, weight_decay=0.1
    )
    theta = optimizer.init_theta(key)
    weights = {k: np.asarray(x, np.float64) for k, x in theta["params"].items()}
    slow = (0.9, 0.99, 0.999)

    def step(moments, g, p, t):
        if g.ndim == 1:
            mean = moments.m[0] / (1 - 0.9 ** (t + 1))
            squares = moments.v / (1 - 0.95 ** (t + 1))
            direction = mean / (np.sqrt(squares) + 1e-8)
        else:
            x = moments.features(g, p, extended=True)
            direction = network(weights, x).reshape(g.shape)
            if orthogonalize:
                matrix = direction.reshape(-1, g.shape[-1])
                x = matrix / np.linalg.norm(matrix)
                for _ in range(5):
                    a = x @ x.T
                    x = 3.4445 * x - 4.7750 * a @ x + 2.0315 * a @ a @ x
                direction = x.reshape(g.shape)
            direction = direction / np.sqrt((direction**2).mean())
        return -0.01 * (direction + 0.1 * p)

    assert_steps_are(
        optimizer, theta, key, lambda shape: Moments(shape, slow, 0.95, slow), step
    )


def test_every_matrix_takes_steps_of_the_same_size(key):
    optimizer = NormalizedMLP(learning_rate=0.02)
    transformation = optimizer.as_optax(optimizer.init_theta(key), 10)
    params = draw(key)
    grads = jax.tree.map(lambda x: 1e3 * x, params)
    updates, _ = transformation.update(grads, transformation.init(params), params)
    for name in ("w", "conv"):
        size = float(jnp.sqrt(jnp.mean(jnp.square(updates[name]))))
        np.testing.assert_allclose(size, 0.02, rtol=1e-4)


def test_the_bias_of_averages_fades_past_the_horizon(key):
    optimizer = NormalizedMLP(learning_rate=0.02)
    tx = optimizer.as_optax(optimizer.init_theta(key), num_steps=1)
    grad = params = jnp.ones(3)
    state = tx.init(params)
    for _ in range(5):
        updates, state = tx.update(grad, state, params)
        np.testing.assert_allclose(updates, -0.02, rtol=1e-5)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (2, 3, 5)])
def test_orthogonal_steps_have_singular_values_near_one(shape, key):
    found = orthogonalized(jax.random.normal(key, shape)).reshape(-1, shape[-1])
    values = np.linalg.svd(np.asarray(found), compute_uv=False)
    assert values.min() > 0.5
    assert values.max() < 1.3


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((7,), None), ((5, 3), (0, 1)), ((3, 3, 8, 4), (2, 3)), ((9, 2, 8), (0, 2))],
)
def test_rows_and_columns_are_the_two_largest_dimensions(shape, axes):
    assert factored_axes(shape) == axes


def test_learned_decays_never_fall_below_zero(key):
    optimizer = AdafactorMLP()
    theta = optimizer.init_theta(key)
    theta["decays"] = jax.tree.map(lambda x: x + 5.0, theta["decays"])
    transformation = optimizer.as_optax(theta, 10)
    params = draw(key)
    _, state = transformation.update(params, transformation.init(params), params)
    for momentum in state.tensors.momenta:
        np.testing.assert_allclose(momentum["w"], params["w"], rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AdafactorMLP(width=0), "`width` and `depth` must be at least 1"),
        (lambda: NormalizedMLP(depth=0), "`width` and `depth` must be at least 1"),
        (lambda: NormalizedMLP(learning_rate=0.0), "`learning_rate` must be positive"),
    ],
)
def test_bad_hyperparameters_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
