"""Learned optimizer for an MLP on MNIST, appendix D.3."""

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from evaluation.paper import looks
from evaluation.paper.experiment import Experiment, conclude
from evaluation.paper.jobs import ES_AND_PES, training
from evaluation.paper.records import is_lower, spread
from lopt.optimizers.per_parameter_mlp import PerParameterMLP
from meta_train.core.inner_training import InnerTraining
from meta_train.core.truncation import Truncation
from meta_train.outer.outer_optimizer import OuterAdam
from tasks.supervised.mlp import MLP


@dataclass(frozen=True)
class LoptMnist(Experiment):
    """Meta-loss of learned optimizers with several initializations."""

    name = "lopt-mnist"
    figure = "appendix D.3, learned optimizer trained on MNIST"
    claim = (
        "PES ends below truncated ES in meta-loss, and is more consistent over "
        "initializations of the learned optimizer."
    )
    shows = "Meta-loss over outer training, one curve for each initialization."
    differs = (
        "Synchronous updates of one population; the standard deviation (0.03) is ours. "
        "At the scale small: a network of width 8 per parameter, an MLP 2 x 16, "
        "batches of 32, T = 100, 600 updates, rates from 0.003 and 0.01."
    )
    scales: ClassVar = {
        "smoke": {
            **{"num_seeds": 1, "dataset": "digits", "width": 4, "batch_size": 8},
            **{"optimizer_width": 4, "horizon": 20, "num_pairs": 2, "num_runs": 2},
            **{"num_outer_steps": 4, "num_points": 1, "learning_rates": (1e-3,)},
        },
        "small": {
            **{"num_seeds": 3, "width": 16, "batch_size": 32, "optimizer_width": 8},
            **{"horizon": 100, "num_pairs": 4, "num_runs": 8, "num_outer_steps": 600},
            **{"num_points": 6, "learning_rates": (3e-3, 1e-2)},
        },
        "paper": {},
    }
    minutes: ClassVar = {"smoke": 0.4, "small": 8, "paper": 50_000}

    num_seeds: int = 5
    dataset: str = "mnist"
    width: int = 128
    batch_size: int = 128
    optimizer_width: int = 32
    horizon: int = 1_000
    length: int = 4
    num_pairs: int = 16
    std: float = 0.03
    learning_rates: tuple[float, ...] = (3e-5, 1e-4, 3e-4, 1e-3)
    num_outer_steps: int = 50_000
    num_runs: int = 20
    num_points: int = 50

    @override
    def jobs(self):
        task = MLP(self.dataset, batch_size=self.batch_size, width=self.width)
        system = InnerTraining(task, PerParameterMLP(width=self.optimizer_width))
        window = Truncation(self.length, self.horizon)
        return self.runs(
            {
                f"{name}/rate-{rate:g}": training(
                    system,
                    kind(window, num_pairs=self.num_pairs, std=self.std),
                    OuterAdam(rate, clip=3.0),
                    self.num_outer_steps,
                    num_points=self.num_points,
                    num_evaluation_runs=self.num_runs,
                )
                for name, kind in ES_AND_PES.items()
                for rate in self.learning_rates
            }
        )

    def _best(self, results, name):
        """Runs of a method at its best learning rate."""
        return results.best(f"{name}/rate-{rate:g}" for rate in self.learning_rates)

    @override
    def check(self, results):
        best = {name: self._best(results, name) for name in ES_AND_PES}
        ends = {name: results.final(method) for name, method in best.items()}
        shown = ", ".join(f"{best[n]} {spread(ends[n])}" for n in ES_AND_PES)
        spreads = {name: float(end.max() - end.min()) for name, end in ends.items()}
        text = f"ranges {spreads['PES']:.3g} and {spreads['ES']:.3g}"
        return conclude(
            [
                (f"final meta-loss {shown}", is_lower(ends["PES"], ends["ES"])),
                (f"{text}, PES more consistent", spreads["PES"] < spreads["ES"]),
            ]
        )

    @override
    def draw(self, results):
        figure, (axis,) = looks.axes(1, size=5.2)
        for name in ES_AND_PES:
            steps, losses = results.curve(self._best(results, name))
            for i, losses_of_seed in enumerate(losses):
                label, style = name if i == 0 else "", looks.look(name)
                looks.curve(axis, steps, losses_of_seed[None], style, label)
        axis.set(xlabel="outer update", ylabel="meta-loss")
        looks.legend(axis)
        return figure
