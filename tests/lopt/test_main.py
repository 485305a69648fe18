import subprocess
import sys

import pytest

from lopt.__main__ import COMMANDS, main
from lopt.describe import differences, from_dict, to_dict
from lopt.mlp import PerParameterMLP
from lopt.registry import OPTIMIZERS


def test_import_lopt_pays_for_no_dataset_checkpoint_or_log():
    heavy = {"tensorflow_datasets", "wandb", "orbax", "sklearn", "matplotlib", "tyro"}
    code = "import sys, lopt; lopt.load; lopt.save; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert heavy.isdisjoint(name.split(".")[0] for name in loaded)
    assert "optax" in loaded


def test_help_imports_nothing_slow_and_names_every_command():
    code = (
        "import sys; from lopt.__main__ import main; main(['--help']); "
        "print('loaded', *sys.modules)"
    )
    text = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    usage, loaded = text.split("loaded")
    assert all(command in usage for command in COMMANDS)
    assert {"jax", "numpy", "tyro"}.isdisjoint(loaded.split())


def test_an_unknown_command_gets_the_nearest_name(capsys):
    assert main(["meta-trian"]) == 2
    expected = "lopt meta-trian: there is no command 'meta-trian'. "
    assert capsys.readouterr().err == f"{expected}Did you mean 'meta-train'?\n"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_descriptions_round_trip(name):
    optimizer = OPTIMIZERS[name]()
    assert from_dict(to_dict(optimizer), OPTIMIZERS) == optimizer


def test_differences_name_the_fields():
    old = to_dict(PerParameterMLP(second_moment_decays=(0.9,)))
    new = to_dict(PerParameterMLP(width=8, second_moment_decays=(0.99,)))
    assert differences(old, new) == [
        "width: 32 -> 8",
        "second_moment_decays.0: 0.9 -> 0.99",
    ]
