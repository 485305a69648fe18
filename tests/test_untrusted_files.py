"""Files from outside are data: one-line errors, bounded memory, nothing executed."""

import dataclasses
import json
import math
import os
import stat
import struct

import jax.numpy as jnp
import numpy as np
import pytest

import lopt
from evaluation.report.results import RESULTS_FILE
from evaluation.suites import Case, with_training_cases
from evaluation.training.cache import Cache
from evaluation.training.costs import StepCost
from lopt.cache_directory import cache_folder, make_private
from lopt.cli.main import main
from lopt.errors import UserError
from lopt.files import format as file_format
from lopt.files.dataclass_json import to_dict
from lopt.kernels import native
from lopt.optimizers.per_parameter_mlp import PerParameterMLP
from meta_train.config.config_file import read_config, write_config
from meta_train.config.preset_configs import CONFIGS
from meta_train.devices.launch import Launch
from tasks import datasets
from tasks.datasets.images import _check_features
from tasks.prepared import DataError, read_file
from tasks.supervised.language import RecurrentLM
from tasks.supervised.mlp import MLP
from tasks.zoo import ZOO

MARKUP = "<script>alert(1)</script>[red]\x1b[31mred"


def nested(levels):
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.fixture
def saved(tmp_path, key):
    optimizer = PerParameterMLP(width=8)
    path = tmp_path / "mlp.safetensors"
    lopt.save(path, optimizer, optimizer.init_theta(key), {"horizons": [10, 20]})
    return path


def rewritten(path, change, tensors=None):
    """Write a file with a changed header and a valid checksum."""
    import safetensors.numpy

    header, found = file_format.read_file(path)
    header.pop("sha256")
    change(header)
    found = found if tensors is None else tensors
    header["sha256"] = file_format._checksum(header, found)
    metadata = {"lopt": json.dumps(header)}
    path.write_bytes(safetensors.numpy.save(found, metadata))
    return path


def test_an_empty_tensor_does_not_pay_for_a_large_network(saved):
    def change(header):
        header["hyperparameters"]["depth"] = 10**9

    tensors = {"x": np.zeros((10**9, 0), np.float32)}
    with pytest.raises(UserError, match="`depth` must be at most"):
        lopt.load_theta(rewritten(saved, change, tensors))


def test_a_long_tensor_does_not_pay_for_a_deep_network(saved):
    def change(header):
        header["hyperparameters"]["depth"] = 10**5

    tensors = {"x": np.zeros(10**6, np.float32)}
    with pytest.raises(UserError, match="`depth` must be at most 100"):
        lopt.load_theta(rewritten(saved, change, tensors))


def test_a_file_of_too_many_tensors_is_not_parsed(saved):
    tensors = {f"x{i}": np.zeros(1, np.float32) for i in range(1_001)}
    with pytest.raises(UserError, match=r"at most .* 1000 tensors"):
        lopt.load_theta(rewritten(saved, lambda header: None, tensors))


@pytest.mark.parametrize("horizon", [10**400, -(10**400), math.nan, "x", None, [1]])
def test_horizons_of_a_card_may_be_anything(horizon, saved):
    def change(header):
        header["card"]["horizons"] = [horizon]

    lopt.load(rewritten(saved, change), num_steps=10)


def test_a_deeply_nested_card_is_refused(saved, capsys):
    path = rewritten(saved, lambda header: header["card"].update(x=nested(300)))
    assert main(["show", str(path)]) == 2
    assert "header cannot be read" in capsys.readouterr().err


def test_a_sparse_file_is_refused_by_its_size(tmp_path, capsys):
    path = tmp_path / "sparse.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 2**32))
        file.truncate(5 * 2**30)
    assert main(["show", str(path)]) == 2
    assert "5,368,709,120 bytes" in capsys.readouterr().err


HOSTILE_TASKS = {
    "device": to_dict(RecurrentLM(text="/dev/zero")),
    "relative path": {**to_dict(RecurrentLM()), "text": "../secret"},
    "csv": {**to_dict(MLP()), "dataset": "/tmp/fifo.csv"},
    "unknown dataset": {**to_dict(MLP()), "dataset": "secret"},
    "depth": {**to_dict(MLP()), "depth": 10**5},
    "width": {**to_dict(MLP()), "width": 10**9},
    "parameters": {**to_dict(MLP()), "width": 2**20, "depth": 100},
    "type": {"type": "Path", "x": 1},
    "number": 7,
    "nested": nested(100),
}


@pytest.mark.parametrize("name", HOSTILE_TASKS)
def test_a_card_cannot_open_files_or_exhaust_memory(name):
    suite = (Case("mlp", MLP(), 10, "test"),)
    card = {"tasks": [HOSTILE_TASKS[name]], "horizons": [1, 100]}
    assert with_training_cases(suite, [card]) == suite


@pytest.mark.parametrize("horizons", [[1, math.inf], [0, 5], [-1], "x", None, [10**12]])
def test_a_card_cannot_ask_for_endless_runs(horizons):
    suite = (Case("mlp", MLP(), 10, "test"),)
    card = {"tasks": [to_dict(ZOO["wine-mlp"].problem)], "horizons": horizons}
    assert with_training_cases(suite, [card]) == suite


@pytest.mark.parametrize("tasks", ["x", {"a": 1}, None, 3])
def test_tasks_of_a_card_may_have_any_type(tasks):
    suite = (Case("mlp", MLP(), 10, "test"),)
    assert with_training_cases(suite, [{"tasks": tasks, "horizons": [1, 2]}]) == suite


QUADRATIC = to_dict(CONFIGS["quadratic-schedule"].systems[0])


def change_config(run_dir, **fields):
    path = run_dir / "config.json"
    described = json.loads(path.read_text())
    for name, value in fields.items():
        parent = described
        *parents, last = name.split("__")
        for each in parents:
            parent = parent[each]
        parent[last] = value
    path.write_text(json.dumps(described))


@pytest.mark.parametrize(
    "fields",
    [
        {"estimator__num_pairs": 10**12},
        {"estimator": []},
        {"systems": nested(40)},
        {"num_outer_steps": "many"},
        {"estimator__truncation": None},
        {"type": "PES"},
        {"systems": [{"type": "MLP", "depth": 10**9}]},
        {"systems": [{**QUADRATIC, "task": {"type": "RandomQuadratic", "dim": 2**20}}]},
        {"systems": [{**QUADRATIC, "task": {"type": "MLP", "width": 2**20}}]},
    ],
)
def test_a_hostile_configuration_is_refused_in_one_line(fields, tmp_path, capsys):
    config = dataclasses.replace(CONFIGS["quadratic-schedule"], run_dir=tmp_path)
    write_config(config)
    change_config(tmp_path, **fields)
    for command in ("plot", "export"):
        out = ["--out", str(tmp_path / "x")] if command == "export" else []
        assert main([command, str(tmp_path), *out]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1, error
    with pytest.raises(UserError, match="is damaged"):
        read_config(tmp_path)


@pytest.mark.parametrize("content", [None, b"", b"[]", b"\xff", b'{"type": 3}'])
def test_a_lost_configuration_is_written_again(content, tmp_path):
    config = dataclasses.replace(CONFIGS["quadratic-schedule"], run_dir=tmp_path)
    write_config(config)
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n')
    (tmp_path / "config.json").unlink()
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    said = []
    write_config(config, said.append)
    assert "missing or damaged" in said[0]
    assert read_config(tmp_path) == config


@pytest.mark.parametrize("content", [b"[]", b"\xff", b"{" * 10_000, b'{"schema": [1]}'])
def test_damaged_results_are_refused_in_one_line(content, tmp_path, capsys):
    (tmp_path / RESULTS_FILE).write_bytes(content)
    assert main(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_file_that_is_not_regular_is_not_opened(tmp_path):
    fifo = tmp_path / "fifo.csv"
    os.mkfifo(fifo)
    for path in (fifo, "/dev/zero"):
        with pytest.raises(DataError, match="must be a regular file"):
            read_file(type(fifo)(path))
    with pytest.raises(DataError, match="must be a regular file"):
        datasets.get(str(fifo))


def test_tfds_imports_no_module_that_data_names(tmp_path):
    path = tmp_path / "features.json"
    bad = {"featuresDict": {"a": [{"pythonClassName": "os.path.join"}]}}
    path.write_text(json.dumps(bad))
    with pytest.raises(ValueError, match="features of TFDS only"):
        _check_features(path)


def test_a_relative_path_is_found_in_the_current_directory(tmp_path, monkeypatch):
    data, here = tmp_path / "data", tmp_path / "here"
    for folder, value in ((data, 1.0), (here, 2.0)):
        folder.mkdir()
        rows = [f"{i},{value * i}" for i in range(30)]
        (folder / "table.csv").write_text("\n".join(rows))
    monkeypatch.setenv("LOPT_DATA_DIR", str(data))
    (data / "other.csv").write_text("\n".join(f"{i},{i},{i}" for i in range(30)))
    monkeypatch.chdir(here)
    assert datasets.get("table.csv").shape == (1,)
    assert datasets.get("other.csv").shape == (2,)


@pytest.mark.parametrize("variable", ["SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"])
@pytest.mark.parametrize("value", ["abc", "-1", "1e9"])
def test_invalid_launcher_variables_are_refused(variable, value, monkeypatch):
    monkeypatch.setenv(variable, value)
    with pytest.raises(UserError, match=variable):
        _ = Launch().is_distributed


def test_there_is_no_cache_without_a_home(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert cache_folder("native") is None
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder("native") is None


def test_cache_directories_are_private(tmp_path):
    folder = tmp_path / "lopt" / "programs"
    make_private(folder)
    for path in (folder, folder.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="changing owners requires root")
@pytest.mark.parametrize("target", ["file", "folder", "cache"])
def test_a_library_of_another_user_is_not_loaded(target, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = native._path()
    make_private(path.parent)
    path.write_bytes(b"not a library")
    owned = {"file": path, "folder": path.parent, "cache": path.parent.parent}[target]
    os.chown(owned, 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to another user"):
        native._load(path)


def test_a_library_that_others_can_write_is_not_loaded(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = native._path()
    make_private(path.parent)
    path.write_bytes(b"not a library")
    path.chmod(0o666)
    with pytest.raises(PermissionError, match="written by others"):
        native._load(path)


def test_damaged_cache_entries_are_missing(tmp_path):
    cache = Cache(tmp_path)
    cache.put("x", StepCost(1.0, 2.0))
    assert cache.get("x", StepCost) == StepCost(1.0, 2.0)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    for _ in range(2_000):
        spoiled = bytearray(whole[: random.integers(1, len(whole) + 1)])
        for place in random.integers(0, len(spoiled), random.integers(0, 4)):
            spoiled[place] = random.integers(256)
        path.write_bytes(spoiled)
        found = cache.get("x", StepCost)
        assert found in (None, StepCost(1.0, 2.0))


def test_names_of_a_report_are_neither_markup_nor_control_characters(
    tmp_path, capsys, key
):
    from evaluation import evaluate
    from lopt.optimizers.scheduled_sgd import ScheduledSGD
    from tasks.synthetic.quadratic import RandomQuadratic

    case = Case("quadratic", RandomQuadratic(dim=4), 20, "test")
    optimizer = (ScheduledSGD(), jnp.log(jnp.full(2, 0.05)))
    few = {"num_seeds": 3, "num_tuning_seeds": 1, "baselines": ("sgd",)}
    results = evaluate({"mine": optimizer}, [case], cache=Cache(), **few)
    text = json.dumps(results).replace("mine", json.dumps(MARKUP)[1:-1])
    results = json.loads(text.replace('"quadratic"', json.dumps("$x_{$" + MARKUP)))
    results["how"]["num_seeds"] = MARKUP
    (tmp_path / RESULTS_FILE).write_text(json.dumps(results))
    assert main(["report", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "\x1b[31m" not in output
    assert "[red]" in output.replace("\n", "")
    page = (tmp_path / "report.html").read_text()
    assert "<script>" not in page
    results["cases"][0]["num_steps"] = {"a": 1}
    results["methods"] = []
    (tmp_path / RESULTS_FILE).write_text(json.dumps(results))
    assert main(["report", str(tmp_path)]) == 2
    assert "must have the content" in capsys.readouterr().err


def test_a_report_that_does_not_fit_keeps_its_input(tmp_path, monkeypatch):
    import resource

    from evaluation.report import write
    from lopt.files.atomic import write_atomically

    path = tmp_path / RESULTS_FILE
    path.write_text("{}")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8_192, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write.write_report(tmp_path, {"x": "y" * 100_000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "{}"
    assert [p.name for p in tmp_path.iterdir()] == [RESULTS_FILE]
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
