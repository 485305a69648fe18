"""Import of released optimizers: files, cards and errors."""

import flax.serialization
import jax
import numpy as np
import pytest

import lopt
from lopt.files.released import FORMATS
from tests.lopt.released import (
    FOLDER,
    FORMATS as FOLDERS,
    needs_released,
    random_tensors,
    write,
)

KINDS = ("celo", "celo-adam", "celo2", "velo", "adafac-mlp")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "theta.state"


def count(tensors):
    return sum(np.size(x) for x in jax.tree.leaves(tensors))


@pytest.mark.parametrize("name", FORMATS)
def test_an_imported_file_is_an_ordinary_optimizer(name, path, tmp_path):
    tensors = random_tensors("adafac-mlp" if name == "small-fc-lopt" else name)
    out = tmp_path / "optimizer.safetensors"
    optimizer, theta = lopt.import_theta(name, write(path, tensors), out)
    assert count(theta) == count(tensors)  # nothing is lost
    loaded, loaded_theta = lopt.load_theta(out)
    assert loaded == optimizer
    jax.tree.map(np.testing.assert_array_equal, loaded_theta, theta)
    card = lopt.read_card(out)
    assert card["num_parameters"] == count(tensors)
    assert "github.com/" in card["source"]
    assert card["imported_format"] == name
    assert "MIT" in card["license"] or "Apache" in card["license"]
    assert "num_steps is" in card["horizon"]
    assert "horizons" not in card
    params = {"w": np.ones((2, 3), np.float32)}
    tx = lopt.load(out, num_steps=1_000_000)  # no warning: its horizons are unknown
    updates, _ = jax.jit(tx.update)(params, tx.init(params), params, value=1.0)
    assert np.isfinite(updates["w"]).all()


def test_horizons_are_part_of_the_card_if_they_are_known(path, tmp_path):
    out = tmp_path / "optimizer.safetensors"
    write(path, random_tensors("celo2"))
    lopt.import_theta("celo2", path, out, horizons=(100, 2000))
    assert lopt.read_card(out)["horizons"] == [100, 2000]
    with pytest.warns(UserWarning, match="100 to 2000 steps"):
        lopt.load(out, num_steps=5000)
    for horizons in ((5, 2), (0, 3), (1, 2, 3)):
        with pytest.raises(lopt.UserError, match="shortest and the longest"):
            lopt.import_theta("celo2", path, out, horizons=horizons)


def test_fields_that_a_file_does_not_determine_can_be_set(path):
    write(path, random_tensors("celo2"))
    optimizer, _ = lopt.import_theta(
        "celo2", path, learning_rate=3e-4, adam_names=("*embed*",)
    )
    assert optimizer.learning_rate == 3e-4
    assert optimizer.adam_names == ("*embed*",)
    for fields, message in (
        ({"width": 3}, "must be one of adam_.* for Celo2; got width"),
        ({"learning_rate": "fast"}, "must be float"),
        ({"learning_rate": -1.0}, "must be positive"),
    ):
        with pytest.raises(lopt.UserError, match=message):
            lopt.import_theta("celo2", path, **fields)


@pytest.mark.parametrize("fields", [{"params": 0}, {"0": 0}], ids=["class", "tuple"])
def test_theta_is_found_in_a_checkpoint(fields, path):
    tree = flax.serialization.msgpack_restore(
        write(path, random_tensors("celo2")).read_bytes()
    )
    expected = lopt.import_theta("celo2", path)
    (name,) = fields
    path.write_bytes(flax.serialization.to_bytes({name: tree, "gen_id": "", "step": 7}))
    optimizer, theta = lopt.import_theta("celo2", path)
    assert optimizer == expected[0]
    jax.tree.map(np.testing.assert_array_equal, theta, expected[1])


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_a_file_of_another_architecture_names_both(name, other, path):
    write(path, random_tensors(other))
    if name == other:
        lopt.import_theta(name, path)
        return
    with pytest.raises(lopt.UserError) as error:
        lopt.import_theta(name, path)
    assert f"for the format {name}" in str(error.value)
    assert f"must be a file of {FORMATS[name].kind} " in str(error.value)
    assert f"those of {FORMATS[other].kind}. Try `lopt import {other}`" in str(
        error.value
    )


def test_an_unknown_format_gets_the_nearest_name_and_the_list(path):
    with pytest.raises(lopt.UserError, match=r"celo, celo-adam.*Did you mean 'velo'"):
        lopt.import_theta("vello", path)


def without(name):
    return lambda tensors: tensors.pop(name)


def changed(name, function):
    def change(tensors):
        tensors[name] = function(tensors[name])

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("rnn_params/step_size/w"), "has no tensor rnn_params/step_size/w"),
        (without("ff_mod_stack/~/w0__3"), "has no tensor ff_mod_stack/~/w0__3"),
        (lambda x: x.update(more=np.ones(1, "f4")), "it also has more"),
        (changed("ff_mod_stack/~/b1", lambda x: x[0]), "must have rank 2"),
        (changed("ff_mod_stack/~/b1", lambda x: x[:, :2]), "instead of"),
        (changed("ff_mod_stack/~/w0__3", lambda x: x[:, :2]), "instead of"),
        (changed("rnn_params/rnn/linear/b", lambda x: x[:-1]), "tensors of Celo"),
        (changed("lstm_init_state/cell", lambda x: x[:, :2]), "tensors of Celo"),
        (changed("rnn_params/step_size/b", lambda x: x * np.nan), "is not finite"),
    ],
)
def test_tensors_that_do_not_fit_are_named(change, message, path):
    tensors = random_tensors("celo")
    change(tensors)
    with pytest.raises(lopt.UserError, match=message) as error:
        lopt.import_theta("celo", write(path, tensors))
    assert "\n" not in str(error.value)


@needs_released
@pytest.mark.parametrize("folder", FOLDERS)
def test_all_weights_of_a_released_file_are_imported(folder, tmp_path):
    out = tmp_path / "optimizer.safetensors"
    lopt.import_theta(FOLDERS[folder], FOLDER / folder / "theta.state", out)
    about = (FOLDER / folder / "about.json").read_text()
    assert f'"num_parameters": {lopt.read_card(out)["num_parameters"]},' in about
