"""Black-box tuners spend the same budget and improve on the initial theta."""

import importlib.util
import json

import jax
import numpy as np
import pytest

from evaluation.cli.tune import tune as command
from evaluation.tuners.episodes import OuterProblem
from evaluation.tuners.tuners import TUNERS, MetaTraining, OptunaTuner
from lopt.errors import UserError
from lopt.optimizers.scheduled_sgd import ScheduledSGD
from meta_train.config.preset_configs import CONFIGS
from meta_train.core.inner_training import InnerTraining
from meta_train.core.truncation import Truncation
from meta_train.estimators import PES
from meta_train.outer.outer_optimizer import OuterAdam
from meta_train.outer.trainer import Trainer
from tasks.synthetic.quadratic import RandomQuadratic

SYSTEM = InnerTraining(RandomQuadratic(dim=4), ScheduledSGD())
PROBLEM = OuterProblem(SYSTEM, horizon=40)
BUDGET = 100 * 40
NO_TORCH = (
    [pytest.mark.skip(reason="NO TORCH: pip install torch")]
    if importlib.util.find_spec("torch") is None
    else []
)
NAMES = [pytest.param(name, marks=NO_TORCH if name == "gp" else []) for name in TUNERS]


@pytest.mark.parametrize("name", NAMES)
def test_tuners_improve_within_their_budget(name, key):
    data = SYSTEM.load()
    history = list(TUNERS[name].search(PROBLEM, data, BUDGET, seed=0))
    spent = [found.num_steps for found in history]
    assert spent == sorted(spent)
    assert BUDGET - 8 * PROBLEM.window < spent[-1] <= BUDGET
    trainer = Trainer((SYSTEM,), PES(Truncation(10, 40)), OuterAdam(), 1)
    loss = lambda theta: trainer.meta_loss((data,), theta, 40, 8, key)[0]
    start = SYSTEM.init_theta(jax.random.key(0))
    assert loss(history[-1].theta) < 0.5 * loss(start)
    assert np.abs(history[-1].theta - start).max() <= PROBLEM.radius + 1e-5


def test_the_same_seed_gives_the_same_search():
    data = SYSTEM.load()
    ends = [
        list(TUNERS["halving"].search(PROBLEM, data, 1_200, seed))[-1].theta
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(ends[0], ends[1])
    assert not np.array_equal(ends[0], ends[2])


def test_giving_up_early_leaves_room_for_more_episodes(monkeypatch):
    begun = {}
    for pruner in ("none", "halving"):
        tuner = OptunaTuner("random", pruner)
        study = tuner._study(PROBLEM, 0)
        monkeypatch.setattr(OptunaTuner, "_study", lambda *_, study=study: study)
        list(tuner.search(PROBLEM, SYSTEM.load(), BUDGET, seed=0))
        begun[pruner] = len(study.trials)
        monkeypatch.undo()
    assert begun["halving"] > 1.5 * begun["none"]


def test_meta_training_takes_the_place_of_a_tuner():
    config = CONFIGS["quadratic-schedule"]
    problem = OuterProblem(config.systems[0], config.horizon)
    each = config.estimator.num_inner_steps
    tuner = MetaTraining(config.make_trainer())
    history = list(tuner.search(problem, problem.system.load(), 120 * each, seed=0))
    assert history[-1].num_steps == 120 * each
    assert len({found.num_steps for found in history}) == len(history)


def test_tune_compares_several_tuners(tmp_path, capsys):
    flags = ["--tuners", "random", "pbt", "--num-episodes=20", "--num-repeats=2"]
    out = tmp_path / "out"
    assert command(["quadratic-schedule", *flags, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    for name in ("random", "pbt", "PES"):
        assert name in shown
    content = json.loads((out / "tune.json").read_text())
    assert len(content["tuners"]["pbt"]) == 2
    assert (out / "tune.png").stat().st_size > 10_000
    with pytest.raises(UserError, match="Did you mean 'pbt'"):
        command(["quadratic-schedule", "--tuners", "pbtt"])
    with pytest.raises(UserError, match="one system; tables-mlp has 2"):
        command(["tables-mlp"])


@pytest.mark.parametrize("name", ["random", "pbt"])
def test_a_box_of_its_own_replaces_the_radius(name):
    box = OuterProblem(SYSTEM, horizon=40, low=(-9.0, -3.0), high=(-7.0, -2.0))
    found = list(TUNERS[name].search(box, SYSTEM.load(), BUDGET, seed=0))[-1].theta
    assert (np.asarray(box.low) <= found).all()
    assert (found <= np.asarray(box.high)).all()
    with pytest.raises(ValueError, match="must have the same length"):
        OuterProblem(SYSTEM, horizon=40, low=(1.0,))
