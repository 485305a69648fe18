"""Learning rate and momentum of a ResNet on CIFAR-10, appendix D.3."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from evaluation.paper import looks
from evaluation.paper.experiment import Experiment, conclude
from evaluation.paper.jobs import ES_AND_PES, training
from evaluation.paper.records import is_lower, spread
from lopt.optimizers.classical import LearnedMomentum
from meta_train.core.inner_training import InnerTraining
from meta_train.core.truncation import Truncation
from meta_train.outer.outer_optimizer import OuterAdam
from tasks.supervised.convolutional import MyrtleResNet


@dataclass(frozen=True)
class ResnetCifar10(Experiment):
    """ES and PES on the sum of validation losses."""

    name = "resnet-cifar10"
    figure = "appendix D.3, Myrtle.ai ResNet on CIFAR-10"
    claim = "PES lowers the sum of validation losses below that of ES."
    shows = "Learning rate and momentum, tuned by ES and PES."
    differs = (
        "Group norm instead of batch norm. Start, standard deviation (0.1) and outer "
        "optimizer are ours. CIFAR-10 may come from JPEG files, if prepared so. At the "
        "scale small: 4 to 32 channels, batches of 16, T = 100, 40 updates."
    )
    scales: ClassVar = {
        "smoke": {
            **{"num_seeds": 1, "dataset": "digits", "width": 2, "batch_size": 4},
            **{"num_groups": 1, "horizon": 4, "length": 2, "num_outer_steps": 2},
            **{"num_points": 1, "num_runs": 1},
        },
        "small": {
            **{"width": 4, "num_groups": 4, "batch_size": 16, "horizon": 100},
            **{"num_outer_steps": 40, "learning_rate": 0.1, "num_points": 2},
        },
        "paper": {},
    }
    minutes: ClassVar = {"smoke": 0.5, "small": 12, "paper": 100_000}

    dataset: str = "cifar10"
    width: int = 32
    num_groups: int = 8
    batch_size: int = 128
    horizon: int = 5_000
    length: int = 20
    num_pairs: int = 2
    std: float = 0.1
    learning_rate: float = 3e-2
    num_outer_steps: int = 5_000
    num_runs: int = 2
    num_points: int = 20

    @override
    def jobs(self):
        network = {"width": self.width, "num_groups": self.num_groups}
        task = MyrtleResNet(self.dataset, self.batch_size, **network)
        optimizer = LearnedMomentum(initial_lr=1e-3)
        window = Truncation(self.length, self.horizon)
        return self.runs(
            {
                name: training(
                    InnerTraining(task, optimizer, "validation-loss"),
                    kind(window, num_pairs=self.num_pairs, std=self.std),
                    OuterAdam(self.learning_rate, clip=None),
                    self.num_outer_steps,
                    num_points=self.num_points,
                    num_evaluation_runs=self.num_runs,
                )
                for name, kind in ES_AND_PES.items()
            }
        )

    @override
    def check(self, results):
        start = results.curve("PES")[1][:, 0]
        ends = {name: results.final(name) for name in ES_AND_PES}
        shown = ", ".join(f"{name} {spread(end)}" for name, end in ends.items())
        return conclude(
            [
                (f"PES lowers it from {spread(start)}", is_lower(ends["PES"], start)),
                (f"{shown}, PES below ES", is_lower(ends["PES"], ends["ES"])),
            ]
        )

    @override
    def draw(self, results):
        figure, panels = looks.axes(3)
        looks.curves(panels[0], results, list(ES_AND_PES))
        panels[0].set_ylabel("mean validation loss")
        for name in ES_AND_PES:
            style = looks.look(name)
            steps, rates = results.curve(name, "theta/log_lr")
            looks.curve(panels[1], steps, np.exp(rates), style, name)
            steps, logits = results.curve(name, "theta/logit_decay")
            looks.curve(panels[2], steps, 1 / (1 + np.exp(-logits)), style, name)
        panels[1].set(ylabel="learning rate", yscale="log")
        panels[2].set_ylabel("momentum")
        for axis in panels:
            axis.set_xlabel("outer update")
        looks.legend(panels[0])
        return figure
