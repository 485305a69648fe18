"""Task zoo: registry of named tasks, families and unrolled systems.

To register a task, add one entry to `ZOO`, or call `register_task` at run
time.
"""

from typing import Literal, NamedTuple, TypeAlias

from lopt.errors import UserError
from tasks.base import Family, UnrolledSystem
from tasks.families.augmentation import (
    Augmentation,
    InitialScale,
    NoisyGradient,
    Reparameterized,
    ScaledLoss,
    SmallerBatches,
)
from tasks.families.masked_mlp import MaskedMLP
from tasks.families.random_data import AnyDataset, ClassSubset, PermutedLabels
from tasks.supervised.autoencoder import Autoencoder, VariationalAutoencoder
from tasks.supervised.convolutional import ConvNet, MyrtleResNet, ResNet
from tasks.supervised.language import RecurrentLM, TransformerLM
from tasks.supervised.linear import Linear
from tasks.supervised.mlp import MLP
from tasks.synthetic.analytic import MatrixFactorisation, Rosenbrock
from tasks.synthetic.quadratic import QuadraticFamily, RandomQuadratic
from tasks.synthetic.teacher_student import TeacherStudent
from tasks.synthetic.toy_regression import ToyRegression
from tasks.systems.character_lstm import CharacterLSTM
from tasks.systems.influence_balancing import InfluenceBalancing
from tasks.systems.swimmer import Swimmer

Use: TypeAlias = Literal["train", "validation", "held out", "study"]


class Entry(NamedTuple):
    """Named task, family or unrolled system.

    Attributes:
        problem: The task, family or system.
        use: Intended use: ``"train"`` for meta-training, ``"validation"`` during
            meta-training, ``"held out"`` for the final evaluation, ``"study"`` for
            experiments with estimators.
        description: One-line description.
    """

    problem: Family | UnrolledSystem
    use: Use
    description: str


_MNIST, _FASHION, _CIFAR = "mnist", "fashion-mnist", "cifar10"

ZOO: dict[str, Entry] = {
    # Tasks that need no download.
    "digits-mlp": Entry(MLP(), "train", "64-32-32-10 MLP on digits."),
    "digits-mlp-wide": Entry(MLP(width=64), "train", "64-64-64-10 MLP on digits."),
    "digits-mlp-deep": Entry(
        MLP(depth=4), "train", "MLP with four hidden layers of 32 on digits."
    ),
    "digits-mlp-tanh": Entry(
        MLP(activation="tanh"), "train", "64-32-32-10 tanh MLP on digits."
    ),
    "digits-classes": Entry(
        ClassSubset(MLP()),
        "train",
        "Five classes of digits, redrawn for every episode.",
    ),
    "digits-permuted": Entry(
        PermutedLabels(MLP()),
        "train",
        "Digits with labels permuted anew in every episode.",
    ),
    "digits-reparameterized": Entry(
        Reparameterized(MLP()), "train", "Digits, every tensor rescaled."
    ),
    "digits-masked": Entry(
        MaskedMLP(), "train", "MLP on digits; theta owns its numbers of units."
    ),
    "wine-mlp": Entry(MLP("wine"), "train", "13-32-32-3 MLP on the wine table."),
    "diabetes-mlp": Entry(
        MLP("diabetes"), "train", "10-32-32-1 MLP on the diabetes table."
    ),
    "breast-cancer-mlp": Entry(
        MLP("breast-cancer"), "held out", "30-32-32-2 MLP on the breast-cancer table."
    ),
    # Small, diverse tasks: most of the mixture of the preset `general`.
    "digits-mlp-batches": Entry(
        SmallerBatches(MLP()), "train", "MLP on digits, batches of 4 to 64."
    ),
    "digits-mlp-deep-tanh": Entry(
        MLP(width=24, depth=4, activation="tanh"), "train", "Deep tanh MLP on digits."
    ),
    "digits-classes-scaled": Entry(
        InitialScale(
            ClassSubset(MLP(width=16, depth=1, activation="gelu", batch_size=32)),
            low=0.3,
            high=3.0,
        ),
        "train",
        "Five classes of digits, initial weights scaled by 0.3 to 3.",
    ),
    "digits-autoencoder-batches": Entry(
        SmallerBatches(Autoencoder(width=32, batch_size=32)),
        "train",
        "Autoencoder on digits, batches of 2 to 32.",
    ),
    "wine-mlp-deep": Entry(
        MLP("wine", width=24, depth=3, batch_size=32), "train", "Deeper MLP on wine."
    ),
    "diabetes-mlp-batches": Entry(
        SmallerBatches(MLP("diabetes", activation="silu", batch_size=32)),
        "train",
        "SiLU MLP on the diabetes table, batches of 2 to 32.",
    ),
    "letters-lstm-small": Entry(
        RecurrentLM(width=16, length=16, batch_size=8), "train", "16-unit LSTM."
    ),
    "characters-transformer-small": Entry(
        TransformerLM(unit="character", width=16, depth=2, length=16, batch_size=8),
        "train",
        "Two layers of attention of width 16 on characters.",
    ),
    "teacher-wide": Entry(
        TeacherStudent(dim=256, width=32),
        "train",
        "256-32-32-10 MLP on noisy labels of a random MLP.",
    ),
    "teacher-deep": Entry(
        TeacherStudent(dim=32, width=32, depth=4, gain=2.0, batch_size=16),
        "train",
        "MLP with four hidden layers on noisier labels of a random MLP.",
    ),
    # Neither trained on nor held out: these select the checkpoint to export.
    "digits-mlp-gelu": Entry(
        MLP(width=48, depth=3, activation="gelu", batch_size=32),
        "validation",
        "GELU MLP with three hidden layers on digits.",
    ),
    "digits-conv-tanh": Entry(
        ConvNet(width=8, depth=2, activation="tanh"),
        "validation",
        "Two tanh convolutions of 8 channels on digits.",
    ),
    "wine-autoencoder": Entry(
        Autoencoder("wine", width=32, num_latents=3),
        "validation",
        "Autoencoder on wine.",
    ),
    "diabetes-mlp-deep": Entry(
        MLP("diabetes", width=48, depth=5, activation="silu"),
        "validation",
        "SiLU MLP with five hidden layers on the diabetes table.",
    ),
    "characters-lstm": Entry(
        RecurrentLM(unit="character", width=24, length=24),
        "validation",
        "24-unit LSTM on characters.",
    ),
    "characters-transformer": Entry(
        TransformerLM(unit="character", width=24, depth=2, length=24),
        "validation",
        "Two layers of attention on characters.",
    ),
    "friedman-mlp": Entry(
        MLP("friedman"), "held out", "10-32-32-1 MLP on Friedman's regression."
    ),
    "digits-conv": Entry(
        ConvNet(width=16), "held out", "Three convolutions of 16 channels on digits."
    ),
    "digits-conv-small": Entry(
        ConvNet(width=8, batch_size=16),
        "held out",
        "Three convolutions of 8 channels on digits.",
    ),
    "digits-resnet": Entry(
        ResNet(width=8), "held out", "Three residual blocks, 8 to 32 channels."
    ),
    "digits-logistic": Entry(
        Linear(), "held out", "Logistic regression with L2 on digits."
    ),
    "diabetes-linear": Entry(
        Linear("diabetes"), "train", "Linear regression with L2 on the diabetes table."
    ),
    "digits-autoencoder": Entry(
        Autoencoder(), "train", "64-64-8-64-64 tanh autoencoder on digits."
    ),
    "digits-vae": Entry(
        VariationalAutoencoder(), "held out", "Variational autoencoder on digits."
    ),
    "letters-lstm": Entry(RecurrentLM(), "train", "32-unit LSTM on letters."),
    "letters-gru": Entry(
        RecurrentLM(cell="gru"), "held out", "32-unit GRU on letters."
    ),
    "letters-gru-small": Entry(
        RecurrentLM(cell="gru", width=16, length=16, batch_size=8),
        "held out",
        "16-unit GRU on letters.",
    ),
    "letters-transformer": Entry(
        TransformerLM(depth=2), "held out", "Two layers of attention on letters."
    ),
    "quadratic": Entry(
        RandomQuadratic(),
        "train",
        "16 parameters, condition number 100, a noisy minimum.",
    ),
    "quadratics": Entry(
        QuadraticFamily(),
        "train",
        "Quadratics with a random spectrum in every episode.",
    ),
    "rosenbrock": Entry(Rosenbrock(), "held out", "A curved valley, two parameters."),
    "matrix-factorisation": Entry(
        MatrixFactorisation(), "held out", "A 32 x 32 matrix of rank 4, entry by entry."
    ),
    "toy-regression": Entry(
        ToyRegression(),
        "study",
        "The PES paper's two-parameter surface with local minima.",
    ),
    # Tasks that need files: `lopt data prepare NAME` for images, a CSV file for yacht.
    "mnist-mlp": Entry(
        MLP(_MNIST, batch_size=128, width=100),
        "train",
        "784-100-100-10 MLP on MNIST.",
    ),
    "mnist-conv": Entry(
        ConvNet(_MNIST, batch_size=128),
        "train",
        "Three convolutions of 32 channels on MNIST.",
    ),
    "fashion-mlp": Entry(
        MLP(_FASHION, batch_size=128, width=128),
        "held out",
        "784-128-128-10 MLP on Fashion-MNIST.",
    ),
    "fashion-conv": Entry(
        ConvNet(_FASHION, batch_size=128),
        "held out",
        "Three convolutions of 32 channels on Fashion-MNIST.",
    ),
    "images-autoencoder": Entry(
        AnyDataset(Autoencoder(_MNIST, batch_size=128)),
        "train",
        "Autoencoder on MNIST or Fashion-MNIST, drawn for every episode.",
    ),
    "cifar10-mlp": Entry(
        MLP(_CIFAR, batch_size=128, width=128),
        "train",
        "3072-128-128-10 MLP on CIFAR-10.",
    ),
    "cifar10-resnet": Entry(
        ResNet(_CIFAR, batch_size=128),
        "held out",
        "Three residual blocks, 16 to 64 channels, on CIFAR-10.",
    ),
    "cifar10-myrtle": Entry(
        MyrtleResNet(batch_size=128),
        "held out",
        "The PES paper's 1.6M-parameter ResNet.",
    ),
    "fashion-conv-small": Entry(
        ConvNet(_FASHION, batch_size=32, width=8),
        "held out",
        "Three convolutions of 8 channels on Fashion-MNIST.",
    ),
    "cifar10-resnet-small": Entry(
        ResNet(_CIFAR, batch_size=16, width=4, num_groups=2),
        "held out",
        "Three residual blocks, 4 to 16 channels, on CIFAR-10.",
    ),
    "cifar10-myrtle-small": Entry(
        MyrtleResNet(batch_size=16, width=4, num_groups=4),
        "held out",
        "The PES paper's ResNet with an eighth of the channels.",
    ),
    "yacht-mlp": Entry(
        MLP("yacht", batch_size=32), "held out", "6-32-32-1 MLP on the yacht table."
    ),
    # Systems whose outer parameters are not those of an optimizer.
    "character-lstm": Entry(
        CharacterLSTM(), "study", "5-unit LSTM on characters, its weights as theta."
    ),
    "influence-balancing": Entry(
        InfluenceBalancing(), "study", "A linear system on which short windows mislead."
    ),
    "swimmer": Entry(
        Swimmer(), "study", "A linear policy for MuJoCo's Swimmer; extra `control`."
    ),
}

AUGMENTATIONS: dict[str, type[Augmentation]] = {
    "reparameterized": Reparameterized,
    "initial-scale": InitialScale,
    "scaled-loss": ScaledLoss,
    "noisy-gradient": NoisyGradient,
    "smaller-batches": SmallerBatches,
    "permuted-labels": PermutedLabels,
    "class-subset": ClassSubset,
}


def register_task(
    name: str,
    problem: Family | UnrolledSystem,
    description: str = "",
    *,
    use: Use = "train",
) -> None:
    """Add a task, family or system to the zoo, under a new name.

    Args:
        name: Name in metrics, figures and on the command line.
        problem: A frozen dataclass. Runs and exported optimizers store its fields.
        description: One-line description; that of the class by default.
        use: Intended use, see `Entry`.

    Raises:
        UserError: If `name` is taken.
    """
    if name in ZOO and ZOO[name].problem != problem:
        raise UserError(
            f"`name` must not be the name of another task; got {name!r}. Try my-{name}."
        )
    summary = (type(problem).__doc__ or "").partition("\n")[0]
    ZOO[name] = Entry(problem, use, description or summary)
