"""Record of the data of a run: changes are refused, rounding is reported."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lopt.errors import UserError
from meta_train.runtime.provenance import record_provenance


def data():
    return {
        "inputs": jax.random.normal(jax.random.key(0), (1000, 7)),
        "labels": jnp.arange(1000),
        "key": jax.random.key(3),
        "empty": jnp.zeros((0, 2)),
    }


def record(run_dir, **changed):
    """Record the data of one system; return the reports."""
    said = []
    record_provenance(run_dir, ["mine"], [data() | changed], [], said.append)
    return said


def test_equal_data_are_accepted(tmp_path):
    assert record(tmp_path) == record(tmp_path) == []
    begun = json.loads((tmp_path / "provenance.json").read_text())["begun"]
    assert len(begun["data"]["mine"]["means"]) == 64


def test_rounding_is_reported(tmp_path):
    record(tmp_path)
    rounded = data()["inputs"] * (
        1 + 1e-6 * jax.random.normal(jax.random.key(1), (1, 7))
    )
    (said,) = record(tmp_path, inputs=rounded)
    assert "mine differ in rounding" in said


@pytest.mark.parametrize(
    "changed",
    [
        {"inputs": data()["inputs"].at[500, 3].add(0.1)},
        {"inputs": data()["inputs"][::-1]},
        {"inputs": data()["inputs"][:, :6]},
        {"inputs": data()["inputs"].at[0, 0].set(jnp.nan)},
        {"labels": jnp.arange(1000).at[7].set(8)},
        {"key": jax.random.key(4)},
    ],
    ids=["one value", "order", "shape", "nan", "one label", "key"],
)
def test_changed_data_are_refused(changed, tmp_path):
    record(tmp_path)
    with pytest.raises(UserError, match="that of mine is not the data"):
        record(tmp_path, **changed)


@pytest.mark.parametrize("means", [None, "x", [[1.0], 2.0], [1.0], np.pi])
def test_a_damaged_record_matches_equal_data_only(means, tmp_path):
    record(tmp_path)
    path = tmp_path / "provenance.json"
    found = json.loads(path.read_text())
    found["begun"]["data"]["mine"] |= {"means": means, "sha256": "0"}
    path.write_text(json.dumps(found))
    with pytest.raises(UserError, match="that of mine"):
        record(tmp_path)
