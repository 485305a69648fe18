"""Released optimizers: where their files are, random files, and NumPy definitions.

The definitions are in double precision, over the tensors of a file by their names.
"""

import os
from pathlib import Path

import flax.serialization
import numpy as np
import pytest

# Reference trajectories: LOPT_RELEASED_DIR, or else a directory next to the repository.
_BESIDE = Path(__file__).parents[3] / "shared" / "released"
FOLDER = Path(os.environ.get("LOPT_RELEASED_DIR", _BESIDE))
needs_released = pytest.mark.skipif(
    not FOLDER.is_dir(), reason=f"NO DATA: {FOLDER} is missing (LOPT_RELEASED_DIR)"
)

FORMATS = {
    "celo": "celo",
    "celo_adam": "celo-adam",
    "celo2": "celo2",
    "celo2_base": "celo2-base",
    "velo_small": "velo",
    "velo_4000_sizes_reduced": "velo-4000",
    "adafac_mlp": "adafac-mlp",
}
GROUPS = (1, 1, 1, 3, 1, 3, 1, 3, 1, 3, 3, 3, 3, 3)


def random_tensors(name, seed=0, width=4, lstm_width=6, num_banks=3):
    """Draw the tensors of a file of the format `name`."""
    draw = np.random.default_rng(seed).standard_normal
    shapes = {}
    if name == "adafac-mlp":
        shapes = {f"{kind}_decays": (3,) for kind in ("momentum", "adafactor")}
        shapes |= {"rms_decays": (1,), "nn/~/w0": (39, width), "nn/~/b0": (width,)}
        shapes |= {"nn/~/w1": (width, width), "nn/~/b1": (width,)}
        shapes |= {"nn/~/w2": (width, 2), "nn/~/b2": (2,)}
    elif name != "celo-adam":
        banks = () if name.startswith("celo2") else (num_banks,)
        layers = {f"w0__{i}": (n, width) for i, n in enumerate(GROUPS)}
        layers |= {"w1": (width, width), "w2": (width, 3)}
        layers |= {"b0": (width,), "b1": (width,), "b2": (3,)}
        shapes = {f"ff_mod_stack/~/{k}": (*banks, *x) for k, x in layers.items()}
    if name in ("celo", "celo-adam", "velo", "velo-4000"):
        inputs = 30 if name.startswith("velo") else 18
        dense = {f"linear{end}": (inputs, lstm_width) for end in ("", "_1", "_2")}
        dense |= {"rnn/linear": (2 * lstm_width, 4 * lstm_width)}
        dense |= {"step_size": (lstm_width, 1)}
        if name != "celo-adam":
            dense |= {"rnn_to_controls": (lstm_width, num_banks)}
        for layer, shape in dense.items():
            shapes |= {f"rnn_params/{layer}/w": shape}
            shapes |= {f"rnn_params/{layer}/b": shape[1:]}
        shapes |= {f"lstm_init_state/{k}": (1, lstm_width) for k in ("hidden", "cell")}
    scales = {name: 0.02 if "decays" in name else 0.4 for name in shapes}
    return {k: (scales[k] * draw(x)).astype(np.float32) for k, x in shapes.items()}


def write(path, tensors):
    """Write tensors as Flax does, with Haiku's modules as the outer keys."""
    tree = {}
    for name, tensor in tensors.items():
        first, *rest = name.split("/")
        # Modules of the LSTM have slashes in their names: `rnn/linear`.
        keys = [first, *(["/".join(rest[:-1])] if rest[1:] else []), *rest[-1:]]
        inner = tree
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
        inner[keys[-1]] = tensor
    path.write_bytes(flax.serialization.to_bytes(tree))
    return path


# Definitions.


def single(decays):
    """Round decays as the released optimizers do."""
    return np.asarray(decays, np.float32).astype(np.float64)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rsqrt(x):
    return 1 / np.sqrt(x)


class Moments:
    """Accumulators of one tensor."""

    def __init__(self, shape, momenta, second, factored):
        self.decays = momenta, second, factored
        self.m, self.v = np.zeros((len(momenta), *shape)), np.zeros(shape)
        self.row, self.col = [0.0] * 3, [0.0] * 3
        self.axes = np.argsort(shape, kind="stable")[-2:] if len(shape) > 1 else None

    def update(self, g):
        along = lambda decays: decays.reshape(-1, *[1] * g.ndim)
        momenta, second, factored = self.decays
        self.m = along(momenta) * self.m + along(1 - momenta) * g[None]
        self.v = second[0] * self.v + (1 - second[0]) * g**2
        squares = row = col = g**2 + 1e-30
        if self.axes is not None:
            second_largest, largest = map(int, self.axes)
            row = squares.mean(largest, keepdims=True)
            col = squares.mean(second_largest, keepdims=True)
        for i, b in enumerate(factored):
            self.row[i] = b * self.row[i] + (1 - b) * row
            self.col[i] = b * self.col[i] + (1 - b) * col

    def factors(self, epsilon):
        if self.axes is None:
            return [rsqrt(v + epsilon) for v in self.row]
        means = [row.mean(int(self.axes[0]), keepdims=True) for row in self.row]
        rows = [r / (m + 1e-9) for r, m in zip(self.row, means, strict=True)]
        at_least = lambda x: rsqrt(np.maximum(x, 1e-9))
        return [at_least(r) * at_least(c) for r, c in zip(rows, self.col, strict=True)]


def features(moments, g, p, *, extended, epsilon=1e-6, vector_epsilon=0.0):
    """List the groups of inputs in the order of the file."""
    root = rsqrt(moments.v + epsilon)
    groups = [[g], *([[np.clip(g, -0.1, 0.1)]] if extended else []), [p]]
    groups += [moments.m, [moments.v], moments.m * root, [root]]
    groups += [[g * x for x in moments.factors(1e-9)]]
    groups += [[g * root]] if extended else []
    if vector_epsilon is not None or g.ndim > 1:
        groups += [moments.row, moments.col]
        groups += [[rsqrt(x + 1e-8) for x in group] for group in groups[-2:]]
        scaled = zip(moments.m, moments.factors(vector_epsilon), strict=True)
        groups += [[m * x for m, x in scaled]]
    return np.stack([np.broadcast_to(x, g.shape) for group in groups for x in group])


def normalized(x, axes, epsilon):
    return x * rsqrt(epsilon + np.mean(x**2, axes, keepdims=True))


def network(layers, x):
    for i, (kernel, bias) in enumerate(layers):
        x = np.einsum("i...,io->o...", x, kernel)
        x = x + bias.reshape(-1, *[1] * (x.ndim - 1))
        x = np.maximum(x, 0) if i < len(layers) - 1 else x
    return x


def layers_of(w, num_inputs=30):
    first = np.concatenate([w[f"ff_mod_stack/~/w0__{i}"] for i in range(14)], -2)
    kernels = [first[..., :num_inputs, :], *(w[f"ff_mod_stack/~/w{i}"] for i in (1, 2))]
    return [(k, w[f"ff_mod_stack/~/b{i}"]) for i, k in enumerate(kernels)]


DECAYS = single([0.9, 0.99, 0.999]), single([0.999]), single([0.9, 0.99, 0.999])


def define_adafactor(w, shapes, num_steps):
    scales = np.array([1, 3, 10, 30, 100, 300, 1e3, 3e3, 1e4, 3e4, 1e5])
    names = "momentum", "rms", "adafactor"
    decays = [
        1 - np.exp(10 * (np.log(1 - start) / 10 + w[f"{name}_decays"]))
        for name, start in zip(names, DECAYS, strict=True)
    ]
    layers = [(w[f"nn/~/w{i}"], w[f"nn/~/b{i}"]) for i in range(3)]
    moments = [Moments(shape, *decays) for shape in shapes]

    def step(t, grads, params, loss):
        steps = []
        for each, g, p in zip(moments, grads, params, strict=True):
            each.update(g)
            x = features(each, g, p, extended=False, vector_epsilon=1e-6)
            x = normalized(x, tuple(range(1, x.ndim)), 1e-5)
            time = np.tanh(t / scales - 1).reshape(-1, *[1] * g.ndim)
            x = np.concatenate([x, np.broadcast_to(time, (11, *g.shape))])
            d, a = network(layers, x)
            steps.append(-1e-3 * d * np.exp(1e-3 * a))
        return steps

    return step


def define_celo2(w, shapes, num_steps, *, is_base=False):
    decays = single([0.9, 0.99, 0.999]), single([0.95]), single([0.9, 0.99, 0.999])
    moments = [Moments(shape, *decays) for shape in shapes]

    def orthogonalized(x):
        is_tall = x.shape[-2] > x.shape[-1]
        x = np.swapaxes(x, -1, -2) if is_tall else x
        x = x / (np.sqrt(np.sum(x**2, (-2, -1), keepdims=True)) + 1e-8)
        for _ in range(5):
            a = x @ np.swapaxes(x, -1, -2)
            x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
        return np.swapaxes(x, -1, -2) if is_tall else x

    def step(t, grads, params, loss):
        steps = []
        for each, g, p in zip(moments, grads, params, strict=True):
            if g.ndim == 1 and not is_base:
                each.update(g)
                steps.append(-20e-3 * each.m[0] * rsqrt(each.v + 1e-8))
                continue
            g = np.clip(g, -1000, 1000)
            each.update(g)
            x = features(each, g, p, extended=True, epsilon=1e-8, vector_epsilon=None)
            axes = tuple(range(-min(g.ndim, 2), 0))
            x = network(layers_of(w, len(x)), normalized(x, axes, 1e-9))[0]
            x = orthogonalized(x) if g.ndim > 1 and not is_base else x
            steps.append(-1e-3 * normalized(x, axes, 1e-9))
        return steps

    return step


def define_lstm(name, w, shapes, num_steps):
    """Define Celo, Celo-Adam and VeLO."""
    moments = [Moments(shape, *DECAYS) for shape in shapes]
    loss_decays = np.exp(-1 / np.logspace(1, np.log10(num_steps), 10))
    means, minima = np.zeros(10), np.full(10, 1e12)
    hidden, cell = (
        np.tile(w[f"lstm_init_state/{k}"], (len(shapes), 1)) for k in ("hidden", "cell")
    )

    def dense(layer, x):
        return x @ w[f"rnn_params/{layer}/w"] + w[f"rnn_params/{layer}/b"]

    def trend(t, loss):
        nonlocal means, minima
        weight = 1 - loss_decays ** (t + 1)
        largest = loss if t == 0 else np.max(means / weight)
        loss = min(2 * abs(largest), loss)
        means = loss_decays * means + (1 - loss_decays) * loss
        corrected = means / weight
        minima = np.minimum(minima, corrected)
        span = np.maximum(1e-8, corrected[1:] - minima[:-1])
        found = np.clip((corrected[:-1] - minima[:-1]) / span - 1, -1, 1)
        return found * (t >= 2)

    def statistics(each, p):
        if not name.startswith("velo"):
            return []
        scale = rsqrt(np.maximum(1e-9, np.mean(p**2)))
        m, v = each.m * scale, each.v * scale
        log = lambda x: 0.5 * np.clip(np.log(1e-8 + np.abs(10 * x)), -5, 5)
        rank = np.arange(5) == sum(n > 1 for n in p.shape)
        spread = [np.mean((v - x.mean()) ** 2) for x in m]
        variances = [x.var() for x in m]
        return [[log(v.mean())], rank, log(np.array(variances)), log(np.array(spread))]

    def averages(each):
        return [(each.m[0], DECAYS[0][0]), (each.v, DECAYS[1][0])]

    def descent(each, g, p, controls, size, t):
        if name == "celo-adam":
            m, v = (x / (1 - b ** (t + 1)) for x, b in averages(each))
            return 1e-4 * np.exp(size) * m / (1e-8 + np.sqrt(v + 1e-10))
        if name == "celo":
            shares = np.exp(controls) / np.exp(controls).sum() / len(controls)
        else:
            shares = controls / len(controls) * (100.0 if name == "velo-4000" else 1.0)
        mixed = [[np.tensordot(shares, x, 1) for x in pair] for pair in layers_of(w)]
        x = features(each, g, p, extended=True)
        d, a, _ = network(mixed, normalized(x, tuple(range(1, x.ndim)), 1e-5))
        size = 0.1 * np.exp(size) if name == "celo" else size
        return 1e-3 * size * np.sqrt(np.mean(p**2) + 1e-9) * d * np.exp(1e-3 * a)

    def step(t, grads, params, loss):
        nonlocal hidden, cell
        grads = [np.clip(g, -1000, 1000) for g in grads]
        scales = np.array([0.03, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.1])
        run = [np.tanh(10 * (t / num_steps - scales)), trend(t, loss)]
        x = [[*run, *statistics(m, p)] for m, p in zip(moments, params, strict=True)]
        x = np.stack([np.concatenate(row) for row in x])
        largest = np.maximum(dense("linear_1", x), 0).max(0, keepdims=True)
        x = dense("linear_2", x) + largest
        gates = dense("rnn/linear", np.concatenate([x, hidden], 1))
        write_, new, keep, read = np.split(gates, 4, 1)
        cell = sigmoid(keep + 1) * cell + sigmoid(write_) * np.tanh(new)
        hidden = sigmoid(read) * np.tanh(cell)
        sizes = dense("step_size", hidden)[:, 0]
        has_banks = name != "celo-adam"
        controls = dense("rnn_to_controls", hidden) if has_banks else sizes[:, None]
        steps = []
        for i, (each, g, p) in enumerate(zip(moments, grads, params, strict=True)):
            each.update(g)
            steps.append(-descent(each, g, p, controls[i], sizes[i], t))
        return steps

    return step


def define(name, tensors, shapes, num_steps):
    """Define the updates of a format: ``step(t, grads, params, loss)``."""
    w = {k: np.asarray(x, np.float64) for k, x in tensors.items()}
    if name == "adafac-mlp":
        return define_adafactor(w, shapes, num_steps)
    if name.startswith("celo2"):
        return define_celo2(w, shapes, num_steps, is_base=name == "celo2-base")
    return define_lstm(name, w, shapes, num_steps)
