"""Datasets: data directory, splits, normalization, preparation and bad files."""

import gzip
import io
import tarfile

import jax
import numpy as np
import pytest

from tasks import datasets
from tasks.cli.data import data
from tasks.datasets import DATASETS, DataError, prepare
from tasks.datasets.tables import read_csv
from tasks.datasets.text import read_text, vocabulary_size
from tasks.prepared import data_dir
from tasks.supervised.mlp import MLP

SPLITS = ("train", "validation", "test")


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """Empty data directory."""
    monkeypatch.setenv("LOPT_DATA_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", ["digits", "wine", "breast-cancer", "diabetes"])
def test_splits_of_embedded_data_are_apart_and_normalised(name):
    spec = DATASETS[name]
    parts = {split: datasets.load(name, split) for split in SPLITS}
    assert len(parts["train"].labels) == spec.num_train
    rows = [np.asarray(p.inputs).reshape(len(p.labels), -1) for p in parts.values()]
    together = np.concatenate(rows)
    assert together.shape[1] == np.prod(spec.shape)
    distinct = {row.tobytes() for row in together}
    assert len(distinct) >= 0.99 * len(together)
    if name != "digits":
        inputs = np.asarray(parts["train"].whole().inputs)
        np.testing.assert_allclose(inputs.mean(axis=0), 0.0, atol=1e-4)
        np.testing.assert_allclose(inputs.std(axis=0), 1.0, atol=1e-4)


def test_the_directory_comes_from_the_variable_or_else_from_tfds(monkeypatch, tmp_path):
    monkeypatch.setenv("LOPT_DATA_DIR", str(tmp_path / "ours"))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "theirs"))
    assert data_dir() == tmp_path / "ours"
    monkeypatch.delenv("LOPT_DATA_DIR")
    assert data_dir() == tmp_path / "theirs"
    monkeypatch.delenv("TFDS_DATA_DIR")
    assert data_dir().name == "tensorflow_datasets"


def test_missing_data_names_the_remedy(directory):
    with pytest.raises(DataError) as raised:
        datasets.load("mnist", "train")
    message = str(raised.value)
    for part in ("'mnist'", str(directory), "lopt data prepare mnist", "digits-mlp"):
        assert part in message


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (
            "a,b\n" + "1,2\n" * 9 + "3,\n" + "1,2\n" * 20,
            "row 11, column 2 has an empty",
        ),
        ("1,2\n" * 9 + "3,four\n" + "1,2\n" * 20, "row 10, column 2 has 'four'"),
        ("1,2\n" * 9 + "3,nan\n" + "1,2\n" * 20, "row 10, column 2 has 'nan'"),
        ("1,2\n" * 25 + "1,2,3\n", "row 26 has 3"),
        ("", "got 0 rows"),
        ("a,b\n1,2\n", "got 1 rows"),
    ],
)
def test_a_bad_table_is_refused_by_its_place(content, complaint, directory):
    path = directory / "table.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=complaint):
        read_csv(path)


def test_any_table_can_be_a_task(directory, key):
    rng = np.random.default_rng(0)
    np.savetxt(directory / "mine.csv", rng.normal(size=(50, 4)), delimiter=",")
    task = MLP("mine.csv", batch_size=8)
    batch = task.sample_batch(task.load(), key)
    assert batch.inputs.shape == (8, 3)
    assert np.isfinite(task.loss(task.init_params(key), batch))


def test_a_table_that_is_not_downloaded_is_explained(directory, capsys):
    from lopt.cli.main import main

    assert main(["data", "prepare", "yacht"]) == 2
    error = capsys.readouterr().err
    for text in ("uci_yacht.csv", "Write `Yacht Hydrodynamics` of the UCI", "6 inputs"):
        assert text in error
    rows = "\n".join(",".join(str(i**j % 97) for j in range(1, 8)) for i in range(308))
    (directory / "uci_yacht.csv").write_text(rows)
    assert datasets.load("yacht", "train").inputs.shape == (247, 6)
    assert main(["data", "prepare", "yacht"]) == 2
    assert "it is there already" in capsys.readouterr().err


def test_units_of_a_text(directory):
    (directory / "a.txt").write_text("Abc! é" * 500)
    assert vocabulary_size("a.txt", "letter") == 27
    assert vocabulary_size("a.txt", "byte") == 256
    assert vocabulary_size("a.txt", "character") == 6
    assert read_text("a.txt", "letter", "train")[:5].tolist() == [1, 2, 3, 0, 0]
    parts = [read_text("a.txt", "character", split) for split in SPLITS]
    assert [len(part) for part in parts] == [2400, 300, 300]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(b"", "got 0"), (b"\xff\xfe" * 900, "UTF-8"), (None, "No such file")],
)
def test_a_bad_text_is_refused(content, complaint, directory):
    if content is not None:
        (directory / "bad.txt").write_bytes(content)
    with pytest.raises(DataError, match=complaint):
        read_text("bad.txt", "letter", "train")


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"dataset": "digts"}, "'digts'. Did you mean 'digits'"),
        ({"batch_size": 2_000}, "1438 training examples of digits; got 2000"),
        ({"width": 0}, "`width` must be at least 1"),
        ({"l2": -1.0}, "`l2` must not be negative"),
    ],
)
def test_impossible_tasks_are_refused(fields, complaint):
    with pytest.raises(ValueError, match=complaint):
        MLP(**fields)


def fake_files(name, folder):
    """Write small files in the official layout and list their URLs and checksums."""
    rng = np.random.default_rng(0)
    folder.mkdir()

    def put(file, content):
        (folder / file).write_bytes(content)
        return prepare._File(
            f"https://official/{file}", len(content), prepare._sha256(folder / file)
        )

    if name == "cifar10":
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for i in range(6):
                file = f"data_batch_{i + 1}.bin" if i < 5 else "test_batch.bin"
                rows = rng.integers(0, 256, (20, 3073), np.uint8)
                rows[:, 0] = np.arange(20) % 10
                info = tarfile.TarInfo(f"cifar-10-batches-bin/{file}")
                info.size = rows.size
                archive.addfile(info, io.BytesIO(rows.tobytes()))
        return [put("cifar-10-binary.tar.gz", buffer.getvalue())]
    files = []
    for prefix, num in (("train", 100), ("t10k", 20)):
        pixels = rng.integers(0, 256, (num, 28, 28), np.uint8)
        labels = (np.arange(num) % 10).astype(np.uint8)
        for kind, header, array in (
            ("images-idx3", 16, pixels),
            ("labels-idx1", 8, labels),
        ):
            content = gzip.compress(bytes(header) + array.tobytes())
            files.append(put(f"{prefix}-{kind}-ubyte.gz", content))
    return files


@pytest.fixture(params=["mnist", "cifar10"])
def mirrored(request, directory, tmp_path_factory, monkeypatch):
    """Name of a dataset and the local directory that mirrors its files."""
    folder = tmp_path_factory.mktemp("mirror") / "files"
    files = fake_files(request.param, folder)
    monkeypatch.setattr(prepare, "_official", lambda dataset: files)
    return request.param, folder


def test_prepared_data_has_the_tfds_format(mirrored, directory, capsys):
    name, folder = mirrored
    assert data(["prepare", name, "--mirror", folder.as_uri()]) == 0
    import tensorflow_datasets as tfds

    source = tfds.data_source(name, split="train", data_dir=directory, download=False)
    assert len(source) == 100
    assert [len(datasets.load(name, split).labels) for split in SPLITS] == [90, 10, 20]
    assert not (directory / "downloads").exists()
    assert data(["verify", name]) == 0
    assert "checksums agree" in capsys.readouterr().out
    record = next(DATASETS[name].folder.glob("*train*record*"))
    damaged = bytearray(record.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    record.write_bytes(damaged)
    with pytest.raises(DataError, match=r"checksum has changed.*--again"):
        data(["verify", name])
    record.unlink()
    with pytest.raises(DataError, match="1 of its files cannot be found"):
        data(["verify", name])


@pytest.mark.parametrize("fault", ["truncated", "missing"])
def test_a_failed_download_leaves_nothing_behind(fault, mirrored, directory):
    name, folder = mirrored
    victim = sorted(folder.iterdir())[0]
    if fault == "truncated":
        victim.write_bytes(victim.read_bytes()[:-10])
    else:
        victim.unlink()
    with pytest.raises(DataError, match=r"SHA-256|must be reachable"):
        data(["prepare", name, "--mirror", folder.as_uri()])
    assert not list(directory.rglob("*.part"))
    assert not (directory / name).exists()
    with pytest.raises(DataError, match="lopt data prepare"):
        datasets.load(name, "train")


def test_unreadable_records_are_reported(mirrored, directory):
    name, folder = mirrored
    data(["prepare", name, "--mirror", folder.as_uri()])
    for record in DATASETS[name].folder.glob("*record*"):
        record.write_bytes(b"not a record")
    with pytest.raises(DataError, match="cannot be read"):
        datasets._load.__wrapped__(name, "train", directory)


def test_batches_are_drawn_from_all_rows_alike(key):
    stored = datasets.load("wine", "train")
    batch = jax.jit(lambda s, k: s.sample(20_000, k))(stored, key)
    whole = stored.whole()
    shares = [
        np.bincount(b.labels, minlength=3) / len(b.labels) for b in (batch, whole)
    ]
    np.testing.assert_allclose(*shares, atol=4 * 0.5 / np.sqrt(20_000))
