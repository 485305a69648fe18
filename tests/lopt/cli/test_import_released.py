import pytest

import lopt
from lopt.cli.main import main
from tests.lopt.released import random_tensors, write


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write(tmp_path / "theta.state", random_tensors("celo2"))


def test_a_released_optimizer_is_imported_and_shown(path, capsys):
    assert main(["import", "celo2", str(path), "--out", "celo2.safetensors"]) == 0
    assert "Celo2, " in capsys.readouterr().out
    assert main(["show", "celo2.safetensors"]) == 0
    shown = capsys.readouterr().out
    assert "https://github.com/amoudgl/celo" in shown
    assert "horizon " in shown


def test_hyperparameters_of_celo2_are_flags(path, capsys):
    flags = ["--learning-rate", "0.01", "--adam-names", "*embed*", "*/b"]
    flags += ["--weight-decay", "0.1", "--horizons", "100", "2000"]
    assert main(["import", "celo2-base", str(path), "--out", "a", *flags]) == 0
    optimizer, _ = lopt.load_theta("./a")
    assert optimizer.learning_rate == 0.01
    assert optimizer.weight_decay == 0.1
    assert optimizer.adam_names == ("*embed*", "*/b")
    assert not optimizer.orthogonalize
    assert lopt.read_card("./a")["horizons"] == [100, 2000]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cello", "theta.state"], "Did you mean 'celo'?"),
        (["celo", "theta.state"], "those of Celo2. Try `lopt import celo2`."),
        (["celo2", "."], "got a directory"),
        (["celo2", "none"], "No such file"),
        (["celo2", "theta.state", "--learning-rate", "-1"], "must be positive"),
    ],
)
def test_an_error_is_one_line_and_writes_no_file(arguments, message, path, capsys):
    assert main(["import", *arguments, "--out", "new.safetensors"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("lopt import: ")
    assert message in error
    assert error.count("\n") == 1
    assert not path.with_name("new.safetensors").exists()
