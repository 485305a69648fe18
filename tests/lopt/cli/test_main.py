import subprocess
import sys

import pytest

from lopt.cli.main import COMMANDS, main
from lopt.files.dataclass_json import differences, from_dict, to_dict
from lopt.optimizers.per_parameter_mlp import PerParameterMLP
from lopt.registry import OPTIMIZERS


def test_import_lopt_pays_for_no_dataset_checkpoint_or_log():
    heavy = {"tensorflow_datasets", "wandb", "orbax", "sklearn", "matplotlib", "tyro"}
    code = "import sys, lopt; lopt.load; lopt.save; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert heavy.isdisjoint(name.split(".")[0] for name in loaded)
    assert "optax" in loaded


def run_and_list_modules(*arguments):
    code = (
        "import sys; from lopt.cli.main import main; main(sys.argv[1:]); "
        "print('loaded', *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True
    )
    shown, loaded = done.stdout.split("loaded")
    return shown + done.stderr, set(loaded.split())


def test_help_imports_nothing_slow_and_names_every_command():
    usage, loaded = run_and_list_modules("--help")
    assert all(command in usage for command in COMMANDS)
    assert loaded.isdisjoint({"jax", "numpy", "tyro"})


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["meta-train", "--help"], "influence-balancing"),
        (["estimators", "--help"], "influence-balancing"),
        (["meta-train", "mnist-mlp", "--data-dir=nowhere"], "lopt data prepare mnist"),
        (["estimators", "mnist-mlp", "--data-dir=nowhere"], "lopt data prepare mnist"),
    ],
)
def test_nothing_slow_is_imported_to_list_presets_or_to_miss_data(arguments, shown):
    text, loaded = run_and_list_modules(*arguments)
    assert shown in text
    assert loaded.isdisjoint({"jax", "numpy", "matplotlib"})


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


def test_a_missing_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tyro", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "lopt.cli.show", raising=False)
    assert main(["show"]) == 2
    error = capsys.readouterr().err
    assert "the package tyro must be installed" in error
    assert "pip install '.[train]'" in error


def test_a_machine_without_the_memory_is_reported_in_one_line(monkeypatch, capsys):
    def fail(*_):
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.")

    monkeypatch.setattr("lopt.cli.show.show", fail)
    assert main(["show"]) == 2
    assert "more memory" in capsys.readouterr().err
