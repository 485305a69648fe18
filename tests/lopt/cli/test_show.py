import pytest

import lopt
from lopt.cli.main import main
from lopt.files.dataclass_json import to_dict
from lopt.optimizers.per_parameter_mlp import PerParameterMLP
from tasks.supervised.mlp import MLP


@pytest.fixture
def path(tmp_path, key):
    """Path of an exported optimizer in a run directory."""
    optimizer = PerParameterMLP(width=4)
    card = {
        "tasks": [to_dict(MLP(width=8))],
        "horizons": [100, 2000],
        "num_outer_steps": 5000,
        "seed": 7,
        "mood": "good [red]\x1b[2J",
    }
    path = tmp_path / "optimizer.safetensors"
    lopt.save(path, optimizer, optimizer.init_theta(key), card)
    return path


@pytest.mark.parametrize("is_run", [False, True])
def test_the_card_is_shown_as_a_table(is_run, path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["show", str(path.parent if is_run else path)]) == 0
    shown = capsys.readouterr().out
    lines = [line.strip() for line in shown.splitlines()]
    rows = dict(line.split("  ", 1) for line in lines if "  " in line)
    rows = {name: value.strip() for name, value in rows.items()}
    assert rows["optimizer"].startswith("PerParameterMLP(width=4, depth=2, ")
    assert rows["parameters"] == f"{lopt.read_card(path)['num_parameters']:,}"
    assert rows["trained on"].startswith("MLP(dataset=digits, batch_size=64, ")
    assert rows["for runs of"] == "100 to 2000 steps"
    assert (rows["outer steps"], rows["seed"]) == ("5000", "7")
    assert rows["versions"].startswith("lopt ")
    assert rows["format"] == "1"
    assert rows["checksum"] == f"sha256 {lopt.read_card(path)['sha256'][:12]}"
    assert rows["size"] == f"{path.stat().st_size:,} bytes"
    assert rows["mood"] == "good [red]?[2J"  # no control characters
    assert f"lopt.load('{path}', num_steps=...)" in shown


def test_a_missing_file_is_one_sentence(tmp_path, capsys):
    assert main(["show", str(tmp_path / "none")]) == 2
    assert "there is none" in capsys.readouterr().err
    assert main(["show", str(tmp_path)]) == 2
    assert "must be a run that is over" in capsys.readouterr().err


def test_a_damaged_file_is_one_sentence(path, capsys):
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["show", str(path)]) == 2
    assert "may be truncated" in capsys.readouterr().err
