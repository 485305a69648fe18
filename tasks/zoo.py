"""Names for everything that can be unrolled; a new task is one more line here."""

from typing import NamedTuple

from tasks.base import Task, UnrolledSystem
from tasks.character_lstm import CharacterLSTM
from tasks.influence_balancing import InfluenceBalancing
from tasks.mlp import MLPClassification
from tasks.quadratic import RandomQuadratic
from tasks.toy_regression import ToyRegression


class Entry(NamedTuple):
    """A named task or system, and what to say about it in one line."""

    problem: Task | UnrolledSystem
    description: str


ZOO: dict[str, Entry] = {
    "digits-mlp": Entry(
        MLPClassification(), "64-32-32-10 MLP on scikit-learn's digits."
    ),
    "digits-mlp-wide": Entry(MLPClassification(width=64), "64-64-64-10 MLP on digits."),
    "digits-mlp-deep": Entry(
        MLPClassification(depth=4), "MLP with four hidden layers of 32 on digits."
    ),
    "digits-mlp-tanh": Entry(
        MLPClassification(activation="tanh"), "64-32-32-10 tanh MLP on digits."
    ),
    "wine-mlp": Entry(
        MLPClassification(dataset="wine"), "13-32-32-3 MLP on the wine table."
    ),
    "breast-cancer-mlp": Entry(
        MLPClassification(dataset="breast-cancer"),
        "30-32-32-2 MLP on the breast-cancer table.",
    ),
    "quadratic": Entry(
        RandomQuadratic(), "16 parameters, condition number 100, a noisy minimum."
    ),
    "toy-regression": Entry(
        ToyRegression(), "The PES paper's two-parameter surface with local minima."
    ),
    "character-lstm": Entry(
        CharacterLSTM(), "Weights of a 5-unit LSTM on characters, as theta itself."
    ),
    "influence-balancing": Entry(
        InfluenceBalancing(), "A linear system on which short windows mislead."
    ),
}
