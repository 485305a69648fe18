"""Inner problems: tasks, families of tasks, datasets and unrolled systems."""

from typing import TYPE_CHECKING

from lopt import lazy

if TYPE_CHECKING:
    from tasks.base import (
        Family as Family,
        ParameterizedFamily as ParameterizedFamily,
        Problem as Problem,
        Task as Task,
        UnrolledSystem as UnrolledSystem,
    )
    from tasks.datasets import (
        DATASETS as DATASETS,
        DataError as DataError,
        register_dataset as register_dataset,
    )
    from tasks.datasets.base import Dataset as Dataset, StoredSplit as StoredSplit
    from tasks.families.augmentation import (
        Augmentation as Augmentation,
        InitialScale as InitialScale,
        NoisyGradient as NoisyGradient,
        Reparameterized as Reparameterized,
        ScaledLoss as ScaledLoss,
        SmallerBatches as SmallerBatches,
    )
    from tasks.families.masked_mlp import MaskedMLP as MaskedMLP
    from tasks.families.random_data import (
        AnyDataset as AnyDataset,
        ClassSubset as ClassSubset,
        PermutedLabels as PermutedLabels,
    )
    from tasks.supervised.autoencoder import (
        Autoencoder as Autoencoder,
        VariationalAutoencoder as VariationalAutoencoder,
    )
    from tasks.supervised.base import Supervised as Supervised
    from tasks.supervised.convolutional import (
        ConvNet as ConvNet,
        MyrtleResNet as MyrtleResNet,
        ResNet as ResNet,
    )
    from tasks.supervised.language import (
        RecurrentLM as RecurrentLM,
        TransformerLM as TransformerLM,
    )
    from tasks.supervised.linear import Linear as Linear
    from tasks.supervised.mlp import MLP as MLP
    from tasks.synthetic.analytic import (
        MatrixFactorisation as MatrixFactorisation,
        Rosenbrock as Rosenbrock,
    )
    from tasks.synthetic.quadratic import (
        QuadraticFamily as QuadraticFamily,
        RandomQuadratic as RandomQuadratic,
    )
    from tasks.synthetic.toy_regression import ToyRegression as ToyRegression
    from tasks.systems.character_lstm import CharacterLSTM as CharacterLSTM
    from tasks.systems.influence_balancing import (
        InfluenceBalancing as InfluenceBalancing,
    )
    from tasks.systems.swimmer import Swimmer as Swimmer
    from tasks.zoo import ZOO as ZOO, register_task as register_task

_EXPORTS = {
    "tasks.base": [
        "Family",
        "ParameterizedFamily",
        "Problem",
        "Task",
        "UnrolledSystem",
    ],
    "tasks.datasets": ["DATASETS", "DataError", "register_dataset"],
    "tasks.datasets.base": ["Dataset", "StoredSplit"],
    "tasks.families.augmentation": [
        "Augmentation",
        "InitialScale",
        "NoisyGradient",
        "Reparameterized",
        "ScaledLoss",
        "SmallerBatches",
    ],
    "tasks.families.masked_mlp": ["MaskedMLP"],
    "tasks.families.random_data": ["AnyDataset", "ClassSubset", "PermutedLabels"],
    "tasks.supervised.autoencoder": ["Autoencoder", "VariationalAutoencoder"],
    "tasks.supervised.base": ["Supervised"],
    "tasks.supervised.convolutional": ["ConvNet", "MyrtleResNet", "ResNet"],
    "tasks.supervised.language": ["RecurrentLM", "TransformerLM"],
    "tasks.supervised.linear": ["Linear"],
    "tasks.supervised.mlp": ["MLP"],
    "tasks.synthetic.analytic": ["MatrixFactorisation", "Rosenbrock"],
    "tasks.synthetic.quadratic": ["QuadraticFamily", "RandomQuadratic"],
    "tasks.synthetic.toy_regression": ["ToyRegression"],
    "tasks.systems.character_lstm": ["CharacterLSTM"],
    "tasks.systems.influence_balancing": ["InfluenceBalancing"],
    "tasks.systems.swimmer": ["Swimmer"],
    "tasks.zoo": ["ZOO", "register_task"],
}
__getattr__, __dir__, __all__ = lazy.attach(__name__, _EXPORTS)
