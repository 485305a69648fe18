"""Learned optimizer for an MLP on CIFAR-10, figure 4."""

from dataclasses import dataclass
from typing import ClassVar

from evaluation.paper.lopt_mnist import LoptMnist


@dataclass(frozen=True)
class LoptCifar10(LoptMnist):
    """Meta-loss of learned optimizers with several initializations."""

    name = "lopt-cifar10"
    figure = "figure 4"
    differs = (
        f"{LoptMnist.differs} The width of the MLP is 8 then. CIFAR-10 may come from "
        "JPEG files, if those were prepared."
    )
    scales: ClassVar = {
        **LoptMnist.scales,
        "small": {**LoptMnist.scales["small"], "width": 8},
    }
    minutes: ClassVar = {"smoke": 0.4, "small": 12, "paper": 180_000}

    dataset: str = "cifar10"
