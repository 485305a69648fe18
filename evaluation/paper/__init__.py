"""Experiments of the PES paper (Vicol et al., 2021), by name.

To add one, write a file like the others here and add its class to `EXPERIMENTS`.
"""

from evaluation.paper.costs import Costs
from evaluation.paper.experiment import Experiment
from evaluation.paper.influence_balancing import InfluenceBalancingCurves
from evaluation.paper.lopt_cifar10 import LoptCifar10
from evaluation.paper.lopt_mnist import LoptMnist
from evaluation.paper.many_hyperparameters import ManyHyperparameters
from evaluation.paper.methods import Methods
from evaluation.paper.mnist_lr_schedule import MnistLrSchedule
from evaluation.paper.resnet_cifar10 import ResnetCifar10
from evaluation.paper.swimmer import Swimmer
from evaluation.paper.telescoping import Telescoping
from evaluation.paper.toy_2d import Toy2D
from evaluation.paper.toy_2d_ablation import Toy2DAblation
from evaluation.paper.uci_l2 import UciL2
from evaluation.paper.variance import Variance
from evaluation.paper.variance_analytic import VarianceAnalytic
from evaluation.paper.variance_theory import VarianceTheory

EXPERIMENTS: dict[str, type[Experiment]] = {
    kind.name: kind
    for kind in (
        InfluenceBalancingCurves,
        Toy2D,
        Toy2DAblation,
        LoptCifar10,
        LoptMnist,
        MnistLrSchedule,
        ManyHyperparameters,
        ResnetCifar10,
        UciL2,
        Telescoping,
        Swimmer,
        Variance,
        VarianceAnalytic,
        VarianceTheory,
        Costs,
        Methods,
    )
}
