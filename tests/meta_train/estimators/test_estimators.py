"""Contract of every gradient estimator, and the population code that they share."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lopt.optimizers.scheduled_sgd import ScheduledSGD
from meta_train.core.inner_training import InnerTraining
from meta_train.core.truncation import Episode, Truncation
from meta_train.core.unroll import unroll
from meta_train.devices import sharding
from meta_train.estimators import (
    ARTBP,
    ESTIMATORS,
    PES,
    RTRL,
    AugmentedRandomSearch,
    FullBackprop,
    FullES,
    GeneralizedPES,
    GuidedES,
    NoiseReuseES,
    PESAnalytic,
    TruncatedES,
)
from meta_train.estimators.antithetic import antithetic, draw_noise, pair_sample
from meta_train.estimators.guided_es import orthonormal
from meta_train.estimators.population import average, cap_losses, make_sample
from tasks.synthetic.quadratic import RandomQuadratic
from tasks.systems.character_lstm import CharacterLSTM
from tasks.systems.influence_balancing import InfluenceBalancing
from tests.meta_train.estimators.truth import Recurrence

SYSTEM = InnerTraining(RandomQuadratic(dim=4), ScheduledSGD())


@pytest.mark.parametrize("name", ESTIMATORS)
def test_it_updates_purely_and_compiles_once(name, key):
    estimator = ESTIMATORS[name](Truncation(length=5, horizon=20))
    data, theta = SYSTEM.load(), SYSTEM.init_theta(key)
    state = estimator.init(SYSTEM, data, theta, key)
    for leaf in jax.tree.leaves(state):
        assert leaf.shape[0] == estimator.population_size

    @jax.jit
    @chex.assert_max_traces(1)
    def update(theta, state, key):
        return estimator.update(SYSTEM, data, theta, state, key)

    for i in range(6):
        estimate, following = update(theta, state, jax.random.fold_in(key, i))
        again, _ = update(theta, state, jax.random.fold_in(key, i))
        chex.assert_trees_all_equal(estimate, again)
        chex.assert_trees_all_equal_shapes_and_dtypes(estimate.grad, theta)
        chex.assert_trees_all_equal_shapes_and_dtypes(following, state)
        chex.assert_tree_all_finite(estimate)
        state = following
    assert estimator.num_inner_steps >= estimator.population_size * 5


@pytest.mark.parametrize("kind", [PES, GeneralizedPES, NoiseReuseES, PESAnalytic])
def test_large_pairs_one_after_the_other_are_the_same(kind, key, monkeypatch):
    estimator = kind(Truncation(length=5, horizon=10), num_pairs=4, std=0.1)
    data, theta = SYSTEM.load(), SYSTEM.init_theta(key)

    def updates():
        update = jax.jit(lambda *args: estimator.update(SYSTEM, data, theta, *args))
        estimate, state = update(estimator.init(SYSTEM, data, theta, key), key)
        for i in range(3):
            estimate, state = update(state, jax.random.fold_in(key, i))
        return estimate, state

    together, calls = updates(), []
    one_by_one = sharding.map_one_by_one

    def counted(*args, **kwargs):
        calls.append(kwargs)
        return one_by_one(*args, **kwargs)

    monkeypatch.setattr(sharding, "map_one_by_one", counted)
    monkeypatch.setattr(sharding, "LARGE_MEMBER", 0)
    chex.assert_trees_all_close(updates(), together, rtol=1e-3, atol=1e-5)
    assert calls == [{"isolated": False}]


@pytest.mark.parametrize("kind", [PES, TruncatedES, FullES])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_pairs": 0}, r"`num_pairs` must be at least 1; .* Try num_pairs=16\."),
        ({"std": -0.1}, r"`std` must be positive, .* got std=-0\.1"),
        ({"std": 0.0}, "`std` must be positive"),
    ],
)
def test_a_population_that_makes_no_sense_is_refused(kind, fields, message):
    with pytest.raises(ValueError, match=message):
        kind(Truncation(length=5, horizon=20), **fields)


def test_noise_has_the_standard_deviation_that_was_asked_for(key):
    theta = {"a": jnp.ones(50), "b": jnp.zeros(50)}
    noise = draw_noise(theta, 100, 0.3, key)
    flat = np.concatenate([noise["a"], noise["b"]]).ravel()
    assert abs(flat.std() - 0.3) < 4 * 0.3 / np.sqrt(2 * flat.size)
    a, b = noise["a"].ravel(), noise["b"].ravel()
    assert abs(np.corrcoef(a, b)[0, 1]) < 4 / np.sqrt(a.size)


def test_a_members_noise_does_not_depend_on_how_many_there_are(key):
    few, many = (draw_noise([jnp.ones(7), jnp.ones(())], n, 0.3, key) for n in (3, 8))
    chex.assert_trees_all_equal(few, [x[:3] for x in many])


def test_partners_are_theta_plus_and_minus_the_noise():
    pair = antithetic(jnp.asarray([1.0, 2.0]), jnp.asarray([0.5, -0.25]))
    np.testing.assert_array_equal(pair, [[1.5, 1.75], [0.5, 2.25]])


def test_losses_that_are_not_finite_are_capped_at_the_worst_finite_one():
    losses = jnp.asarray([[1.0, jnp.nan, jnp.inf], [2.0, 5.0, 1.0]])
    capped, diverged = cap_losses(losses)
    np.testing.assert_array_equal(capped, [[1.0, 5.0, 5.0], [2.0, 5.0, 1.0]])
    assert diverged
    capped, diverged = cap_losses(jnp.full((2, 3), jnp.nan))
    np.testing.assert_array_equal(capped, np.zeros((2, 3)))
    assert diverged
    assert not cap_losses(jnp.ones((2, 3)))[1]


def test_a_partner_that_diverges_pushes_theta_away():
    losses = jnp.asarray([[1.0, jnp.inf], [1.0, 0.5]])
    sample = pair_sample(losses, jnp.asarray([0.1]), std=0.1, mean_length=2)
    assert sample.grad[0] > 0  # descent moves theta towards the other partner
    assert sample.diverged


def test_an_estimate_that_overflows_is_dropped_and_counted():
    losses = jnp.full((2, 1), 1e38).at[0].set(3e38)
    sample = pair_sample(losses, jnp.ones(2), std=1e-3, mean_length=1)
    np.testing.assert_array_equal(sample.grad, [0.0, 0.0])
    assert sample.diverged


def test_a_loss_without_finite_values_is_not_zero():
    samples = [
        pair_sample(jnp.full((2, 3), value), jnp.ones(2), std=0.1, mean_length=3)
        for value in (jnp.nan, 4.0)
    ]
    both = average(jax.tree.map(lambda *x: jnp.stack(x), *samples))
    np.testing.assert_allclose(both.loss, 4.0)
    none = average(jax.tree.map(lambda x: x[None], samples[0]))
    assert jnp.isnan(none.loss)
    np.testing.assert_array_equal(none.grad, [0.0, 0.0])


def test_signal_to_noise_is_the_squared_mean_over_its_variance():
    grads = np.array([[1.0, 2.0], [2.0, 0.5], [4.0, 1.0], [0.0, 1.5]], np.float32)
    samples = jax.vmap(lambda g: make_sample(g, jnp.ones(3), 3))(jnp.asarray(grads))
    expected = (grads.mean(0) ** 2).sum() / (grads.var(0, ddof=1).sum() / 4)
    snr = average(samples).diagnostics["signal_to_noise"]
    np.testing.assert_allclose(snr, expected, rtol=1e-5)


class _Exploding(InfluenceBalancing):
    """System with NaN losses for theta > 0.5."""

    def step(self, theta, state, x):
        state, loss = InfluenceBalancing.step(self, theta, state, x)
        return state, jnp.where(theta > 0.5, jnp.nan, loss)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_diverged_member_is_restarted_and_counted(name, key):
    estimator = ESTIMATORS[name](Truncation(length=5, horizon=20))
    theta = jnp.asarray(0.6)
    state = estimator.init(_Exploding(), (), theta, key)
    estimate, state = estimator.update(_Exploding(), (), theta, state, key)
    assert estimate.diagnostics["num_nonfinite"] > 0
    assert jnp.isfinite(estimate.grad)
    is_episode = lambda x: isinstance(x, Episode)
    for part in jax.tree.leaves(state, is_leaf=is_episode):
        if is_episode(part):  # diverged episodes restart
            assert part.is_new.sum() >= estimate.diagnostics["num_nonfinite"]


def test_pes_with_one_window_is_full_es_with_the_same_noise(key):
    truncation = Truncation(length=20, horizon=20)
    data, theta = SYSTEM.load(), SYSTEM.init_theta(key)
    estimates = []
    for kind in (PES, FullES):
        estimator = kind(truncation, num_pairs=8, std=0.1)
        state = estimator.init(SYSTEM, data, theta, key)
        estimates.append(estimator.update(SYSTEM, data, theta, state, key)[0].grad)
    chex.assert_trees_all_close(*estimates, rtol=1e-5)


def test_the_accumulator_is_the_noise_since_the_episode_began(key):
    pes = PES(Truncation(length=5, horizon=15, staggered=False), num_pairs=4, std=0.1)
    data, theta = SYSTEM.load(), SYSTEM.init_theta(key)
    state = pes.init(SYSTEM, data, theta, key)
    expected = np.zeros((4, 2))
    for i in range(5):
        update_key = jax.random.fold_in(key, i)
        _, state = pes.update(SYSTEM, data, theta, state, update_key)
        noise = draw_noise(theta, 4, 0.1, jax.random.split(update_key)[0])
        expected = noise if i == 3 else expected + noise  # 3 windows per episode
        np.testing.assert_allclose(state.accumulator, expected, rtol=1e-5)


def updates(estimator, system, num, key):
    """Compute the gradient estimates of `num` updates at a fixed theta."""
    data, theta = system.load(), system.init_theta(key)

    def update(state, key):
        estimate, state = estimator.update(system, data, theta, state, key)
        return state, estimate.grad

    state = estimator.init(system, data, theta, key)
    return jax.lax.scan(update, state, jax.random.split(key, num))[1]


NOISY = InnerTraining(RandomQuadratic(dim=4, noise_std=1.0), ScheduledSGD(0.1))


@pytest.mark.parametrize("length", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_generalized_pes_renewed_with_each_window_is_pes(length, key):
    truncation = Truncation(length, horizon=20)
    pes = PES(truncation, num_pairs=8, std=0.1)
    general = GeneralizedPES(truncation, num_pairs=8, std=0.1, period=length)
    # Without jit, as XLA fuses the two programs differently, which changes rounding.
    with jax.disable_jit():
        ours, theirs = (updates(e, NOISY, 7, key) for e in (general, pes))
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("length", [1, 4, 10])
@pytest.mark.parametrize("period", [20, 400])
def test_generalized_pes_renewed_once_an_episode_is_noise_reuse(length, period, key):
    truncation = Truncation(length, horizon=20)
    reuse = NoiseReuseES(truncation, num_pairs=8, std=0.1)
    general = GeneralizedPES(truncation, num_pairs=8, std=0.1, period=period)
    ours, theirs = (updates(e, NOISY, 30, key) for e in (general, reuse))
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("system", [NOISY, CharacterLSTM(width=3)])
def test_rtrl_is_full_backprop_with_the_same_inputs(system, key):
    truncation = Truncation(length=20, horizon=20, staggered=False)
    exact, online = (
        updates(kind(truncation, num_episodes=4), system, 3, key)
        for kind in (FullBackprop, RTRL)
    )
    flat = lambda tree: jax.flatten_util.ravel_pytree(tree)[0]
    difference = jnp.linalg.norm(flat(online) - flat(exact))
    assert difference < 1e-4 * jnp.linalg.norm(flat(exact))


def test_rtrl_in_windows_is_rtrl_of_the_episode(key):
    system = Recurrence()  # deterministic, so windows and episodes agree
    grads = [
        updates(
            RTRL(Truncation(length, 12, staggered=False), num_episodes=1),
            system,
            12 // length,
            key,
        )
        for length in (1, 3, 12)
    ]
    means = [jax.tree.map(lambda g: g.mean(axis=0), grad) for grad in grads]
    chex.assert_trees_all_close(*means, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("length", [7, 12, 13, 100])
def test_rematerialising_changes_nothing(length, key):
    data, theta = NOISY.load(), NOISY.init_theta(key)
    state = NOISY.init_state(theta, data, length, key)

    def total(theta, remat):
        return unroll(NOISY, data, theta, state, length, key, remat=remat)[1].sum()

    plain, again = (jax.value_and_grad(total)(theta, remat) for remat in (False, True))
    chex.assert_trees_all_close(plain, again, rtol=1e-5)


def test_guided_es_estimates_the_gradient_through_its_covariance(key):
    dim, guides = 5, jnp.asarray([[1.0, 2.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0, 0.0]])
    slope = jnp.asarray([1.0, -2.0, 3.0, 0.5, -1.0])

    class Linear(InfluenceBalancing):
        def init_state(self, theta, data, horizon, key):
            return jnp.zeros(self.dim)

        def step(self, theta, state, x):
            return state, 3.0 + theta @ slope

    guided = GuidedES(Truncation(1, 1), 20_000, std=0.1, num_guides=2, alpha=0.3)
    state = jnp.broadcast_to(guides, (20_000, 2, dim))
    estimate, following = guided.update(Linear(), (), jnp.zeros(dim), state, key)
    basis, _ = np.linalg.qr(guides.T)
    covariance = 0.3 / dim * np.eye(dim) + 0.7 / 2 * basis @ basis.T
    expected = guided.beta * covariance @ slope
    np.testing.assert_allclose(estimate.grad, expected, atol=0.1)
    np.testing.assert_allclose(estimate.loss, 3.0, rtol=1e-5)
    np.testing.assert_array_equal(following[7, 0], guides[1])
    np.testing.assert_array_equal(following[7, 1], estimate.grad)


def test_guides_that_are_not_there_yet_do_not_guide():
    basis = orthonormal(jnp.asarray([[0.0, 0.0, 0.0], [3.0, 4.0, 0.0]]))
    np.testing.assert_allclose(abs(basis), [[0.6, 0.8, 0], [0, 0, 0]], atol=1e-6)
    np.testing.assert_array_equal(orthonormal(jnp.zeros((2, 3))), np.zeros((2, 3)))


def test_artbp_unrolls_the_stated_number_of_steps(key):
    truncation = Truncation(length=2, horizon=20, staggered=False)
    artbp = ARTBP(truncation, num_episodes=64, num_windows=3.0)
    system = Recurrence()
    theta = system.init_theta(key)

    def update(state, key):
        _, following = artbp.update(system, (), theta, state, key)
        steps = jnp.where(following.is_new, 20, following.age) - state.age
        return following, steps

    state = artbp.init(system, (), theta, key)
    steps = jax.lax.scan(update, state, jax.random.split(key, 200))[1][20:]
    error = steps.mean(axis=0).std(ddof=1) / np.sqrt(64)
    assert error < 0.05 * artbp.mean_length()
    assert abs(steps.mean() - artbp.mean_length()) < 4 * error


def test_analytic_pes_has_far_less_variance_on_text(key):
    truncation = Truncation(length=10, horizon=100)
    variances = []
    for kind in (PES, PESAnalytic):
        grads = updates(kind(truncation, 32, std=0.01), CharacterLSTM(), 50, key)
        flat = jax.vmap(lambda g: jax.flatten_util.ravel_pytree(g)[0])(grads)[10:]
        variances.append(float(flat.var(axis=0, ddof=1).sum()))
    assert variances[0] > 5 * variances[1]


@pytest.mark.parametrize("normalize", ["loss", "estimate"])
@pytest.mark.parametrize("name", ["PES", "FullES"])
def test_normalised_estimates_do_not_depend_on_the_unit_of_the_loss(
    name, normalize, key
):
    @dataclasses.dataclass(frozen=True)
    class Scaled(InfluenceBalancing):
        factor: float = 1.0

        def step(self, theta, state, x):
            state, loss = InfluenceBalancing.step(self, theta, state, x)
            return state, self.factor * loss

    windows = Truncation(length=5, horizon=20)
    estimator = ESTIMATORS[name](windows, num_pairs=8, std=0.1, normalize=normalize)
    assert not estimator.is_unbiased
    theta = jnp.asarray(0.5)
    grads = []
    for factor in (1.0, 1000.0):
        system = Scaled(factor=factor)
        state = estimator.init(system, (), theta, key)
        estimate, _ = estimator.update(system, (), theta, state, key)
        grads.append(estimate.grad)
    assert grads[0] != 0
    np.testing.assert_allclose(*grads, rtol=1e-4)
    plain = dataclasses.replace(estimator, normalize="none")
    state = plain.init(Scaled(), (), theta, key)
    estimate, _ = plain.update(Scaled(), (), theta, state, key)
    names = {"loss": "loss_std", "estimate": "member_norm"}
    spread = estimate.diagnostics[names[normalize]]
    np.testing.assert_allclose(estimate.grad / spread, grads[0], rtol=1e-4)


def test_augmented_random_search_equals_its_definition(key):
    search = AugmentedRandomSearch(Truncation(5, 20), num_pairs=6, std=0.2)
    data, theta = SYSTEM.load(), SYSTEM.init_theta(key)
    estimate, _ = search.update(SYSTEM, data, theta, (), key)
    full = FullES(Truncation(5, 20), num_pairs=6, std=0.2)
    plain, _ = full.update(SYSTEM, data, theta, (), key)
    # FullES is the mean over pairs of (loss_pos - loss_neg) noise / (2 std^2).
    expected = 2 * 0.2 * plain.grad / plain.diagnostics["loss_std"]
    np.testing.assert_allclose(estimate.grad, expected, rtol=1e-4)
    assert not search.is_unbiased
