"""Datasets as whole arrays; batches are drawn from them by key, on the device."""

import importlib
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

DatasetName: TypeAlias = Literal["digits", "wine", "breast-cancer"]

_TEST_SHARE = 0.2


class Examples(NamedTuple):
    """Inputs and class labels, one row an example."""

    inputs: Float[Array, "n inputs"]
    labels: Int[Array, " n"]


def load(name: DatasetName, split: Literal["train", "test"]) -> Examples:
    """Loads a classification dataset that scikit-learn carries inside its package.

    Pixels go to [0, 1]; the columns of tables are standardised with the training
    split's statistics. The split is the same in every process.
    """
    module = importlib.import_module("sklearn.datasets")
    bunch = getattr(module, f"load_{name.replace('-', '_')}")()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    num_test = int(_TEST_SHARE * len(order))
    test, train = order[:num_test], order[num_test:]
    if name == "digits":
        inputs = bunch.data / 16.0
    else:
        center, scale = bunch.data[train].mean(0), bunch.data[train].std(0)
        inputs = (bunch.data - center) / scale
    rows = train if split == "train" else test
    return Examples(
        inputs=jnp.asarray(inputs[rows], jnp.float32),
        labels=jnp.asarray(bunch.target[rows], jnp.int32),
    )


def shape(name: DatasetName) -> tuple[int, int]:
    """Returns the number of inputs and of classes, without loading anything."""
    return {"digits": (64, 10), "wine": (13, 3), "breast-cancer": (30, 2)}[name]


def sample(examples: Examples, batch_size: int, key: PRNGKeyArray) -> Examples:
    """Draws a batch with replacement."""
    rows = jax.random.randint(key, (batch_size,), 0, len(examples.labels))
    return jax.tree.map(lambda x: x[rows], examples)


NUM_CHARACTERS = 27  # the letters, and a space for everything else


def text() -> Int[Array, " characters"]:
    """Loads the descriptions that scikit-learn has of its datasets, as a text.

    Some 15,000 characters: letters of any case become 1 to 26, all else 0.
    """
    module = importlib.import_module("sklearn.datasets")
    names = ("breast_cancer", "diabetes", "digits", "iris", "linnerud", "wine")
    whole = " ".join(getattr(module, f"load_{name}")().DESCR for name in names)
    codes = np.frombuffer(whole.lower().encode("ascii", "replace"), np.uint8)
    is_letter = (codes >= ord("a")) & (codes <= ord("z"))
    return jnp.asarray(np.where(is_letter, codes - ord("a") + 1, 0), jnp.int32)
