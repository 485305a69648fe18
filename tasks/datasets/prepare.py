"""Download official dataset files and write them in TFDS format without TensorFlow."""

import contextlib
import gzip
import hashlib
import importlib
import io
import json
import shutil
import tarfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tasks.datasets.images import TfdsImages
from tasks.prepared import DataError, data_dir

CHECKSUMS = "checksums.json"
_CHUNK = 1 << 18
_SECONDS = 20

Report = Callable[[str, int, int], None]
"""Progress callback with arguments ``(description, done, total)``."""


class _File(NamedTuple):
    url: str
    size: int
    sha256: str

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[-1]


def prepare(dataset: TfdsImages, report: Report, mirror: str | None = None) -> Path:
    """Download, validate and write a dataset.

    Partial downloads are deleted. Complete downloads are deleted after the dataset has
    been written. If a later step fails, they are kept and reused by the next call.
    SHA-256 checksums of the written files are stored for `verify`.

    Args:
        dataset: Dataset to prepare. An existing copy is deleted before writing.
        report: Progress callback.
        mirror: URL of a directory with the same files. Defaults to the official URL.

    Returns:
        The directory of the dataset.

    Raises:
        DataError: If a download fails, has a wrong checksum or cannot be written.
    """
    root = data_dir()
    downloads = root / "downloads" / dataset.name
    try:
        downloads.mkdir(parents=True, exist_ok=True)
        files = [
            _download(file, downloads, report, mirror) for file in _official(dataset)
        ]
        num = sum(spec["num"] for spec in _LAYOUTS[dataset.name].values())
        # Suppress the messages that TFDS prints to stdout.
        with contextlib.redirect_stdout(io.StringIO()):
            _write(dataset, {file.name: file for file in files}, report, num)
        shutil.rmtree(downloads)
    except OSError as error:
        raise DataError(
            f"{dataset.name} must be written into {root}; {error.strerror or error}. "
            "Try --data-dir with a directory that can be written to."
        ) from error
    finally:
        for folder in (downloads, downloads.parent, root):
            with contextlib.suppress(OSError):
                folder.rmdir()  # Fails, and is suppressed, unless the folder is empty.
    sums = {path.name: _sha256(path) for path in sorted(_records(dataset))}
    (dataset.folder / CHECKSUMS).write_text(json.dumps(sums, indent=1) + "\n")
    return dataset.folder


def verify(dataset: TfdsImages, report: Report) -> str:
    """Read a dataset completely and validate its checksums and labels.

    Args:
        dataset: Dataset to verify.
        report: Progress callback.

    Returns:
        A one-line summary for the user.

    Raises:
        DataError: If files are missing, unreadable or changed, or a label is invalid.
    """
    dataset.check_prepared()
    sums = dataset.folder / CHECKSUMS
    expected = json.loads(sums.read_text()) if sums.is_file() else {}
    for i, path in enumerate(records := sorted(_records(dataset))):
        report("checksums", i, len(records) + 3)
        if path.name in expected and _sha256(path) != expected[path.name]:
            raise DataError(
                f"{path} must be as it was written; its checksum has changed. "
                f"Try `lopt data prepare {dataset.name} --again`."
            )
    counts = {}
    for i, split in enumerate(("train", "validation", "test")):
        report(f"reading {split}", len(records) + i, len(records) + 3)
        stored = dataset.read(split)
        labels = np.asarray(stored.labels)
        counts[split] = len(labels)
        if not set(np.unique(labels)) <= set(range(dataset.num_classes)):
            raise DataError(
                f"{dataset.name} must have the classes 0 to {dataset.num_classes - 1} "
                f"in {split}; got {sorted(set(labels.tolist()))[:20]}."
            )
    report("verified", 1, 1)
    how = "checksums agree" if expected else "no checksums were written with it"
    found = ", ".join(f"{num:,} {split}" for split, num in counts.items())
    return f"{dataset.name}: {found} examples, all readable; {how}."


def _records(dataset: TfdsImages) -> Iterator[Path]:
    return dataset.folder.glob("*.array_record-*")


def _official(dataset: TfdsImages) -> list[_File]:
    """List the official files, with the checksums that are part of TFDS."""
    import tensorflow_datasets as tfds

    name = f"{dataset.name.replace('-', '_')}.txt"
    lines = Path(tfds.__file__).parent.joinpath("url_checksums", name).read_text()
    rows = [line.split("\t") for line in lines.splitlines() if line.strip()]
    return [_File(url, int(size), digest) for url, size, digest, *_ in rows]


def _download(file: _File, folder: Path, report: Report, mirror: str | None) -> Path:
    path, part = folder / file.name, folder / f"{file.name}.part"
    if path.is_file() and _sha256(path) == file.sha256:
        return path
    url = f"{mirror.rstrip('/')}/{file.name}" if mirror else file.url
    try:
        with (
            urllib.request.urlopen(url, timeout=_SECONDS) as response,
            part.open("wb") as target,
        ):
            done = 0
            while chunk := response.read(_CHUNK):
                done += len(chunk)
                if done > file.size:
                    raise DataError(
                        f"{url} must have {file.size:,} bytes; it has more. Try again, "
                        "or another --mirror."
                    )
                target.write(chunk)
                report(f"downloading {file.name}", done, file.size)
        found = _sha256(part)
        if found != file.sha256:
            raise DataError(
                f"{url} must have the SHA-256 {file.sha256}; got {found} after "
                f"{done:,} of {file.size:,} bytes. Try again, or --mirror."
            )
        part.rename(path)
    except (urllib.error.URLError, TimeoutError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise DataError(
            f"{url} must be reachable; {reason}. Try again, or --mirror with the URL "
            "of a directory that has the same files."
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(
    dataset: TfdsImages, files: dict[str, Path], report: Report, num: int
) -> None:
    """Write a dataset in TFDS format.

    TFDS writes into a temporary directory and renames it when it is complete.
    """
    tfds: Any = importlib.import_module("tensorflow_datasets")
    official = tfds.builder_cls(dataset.name.replace("-", "_"))
    layout = _LAYOUTS[dataset.name]
    done = 0

    def examples(split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        nonlocal done
        for i, (image, label) in enumerate(layout[split]["read"](files)):
            done += 1
            if done % 500 == 0 or done == num:
                report("writing", done, num)
            record = {"image": io.BytesIO(_png(image)), "label": int(label)}
            yield i, record | layout[split]["more"](i)

    with tfds.core.registered.skip_registration():

        class Prepared(official):
            name = official.name

            def _split_generators(self, dl_manager):
                if dataset.name == "cifar10":
                    self.info.features["label"].names = _CIFAR10_LABELS
                return {split: self._generate_examples(split) for split in layout}

            def _generate_examples(self, split):
                yield from examples(split)

    # TFDS skips preparation if the directory exists.
    shutil.rmtree(dataset.folder, ignore_errors=True)
    tfds.disable_progress_bar()
    builder = Prepared(data_dir=str(data_dir()))
    config = tfds.download.DownloadConfig(compute_stats="skip", num_shards=1)
    builder.download_and_prepare(
        download_dir=str(next(iter(files.values())).parent),
        download_config=config,
        file_format="array_record",
    )


def _png(image: np.ndarray) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image.squeeze()).save(buffer, format="PNG")
    return buffer.getvalue()


def _idx(prefix: str) -> dict[str, Any]:
    """Build the layout of one split in LeCun's IDX format.

    Returns:
        A dict with `read`, a generator of ``(image, label)`` pairs; `num`, the number
        of examples; and `more`, which maps an index to additional record features.
    """

    def read(files: dict[str, Path]) -> Iterator[tuple[np.ndarray, int]]:
        pixels = gzip.decompress(files[f"{prefix}-images-idx3-ubyte.gz"].read_bytes())
        labels = gzip.decompress(files[f"{prefix}-labels-idx1-ubyte.gz"].read_bytes())
        images = np.frombuffer(pixels, np.uint8, offset=16).reshape(-1, 28, 28)
        yield from zip(images, np.frombuffer(labels, np.uint8, offset=8), strict=True)

    num = 60_000 if prefix == "train" else 10_000
    return {"read": read, "num": num, "more": lambda i: {}}


def _cifar10(prefix: str, names: tuple[str, ...]) -> dict[str, Any]:
    def read(files: dict[str, Path]) -> Iterator[tuple[np.ndarray, int]]:
        with tarfile.open(files["cifar-10-binary.tar.gz"]) as archive:
            for name in names:
                member: Any = archive.extractfile(f"cifar-10-batches-bin/{name}")
                rows = np.frombuffer(member.read(), np.uint8).reshape(-1, 1 + 3072)
                images = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
                yield from zip(images, rows[:, 0], strict=True)

    def more(i):
        return {"id": f"{prefix}_{i:05d}"}

    return {"read": read, "num": 10_000 * len(names), "more": more}


_CIFAR10_LABELS = ["airplane", "automobile", "bird", "cat", "deer"]
_CIFAR10_LABELS += ["dog", "frog", "horse", "ship", "truck"]
_LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "mnist": {"train": _idx("train"), "test": _idx("t10k")},
    "fashion-mnist": {"train": _idx("train"), "test": _idx("t10k")},
    "cifar10": {
        "train": _cifar10("train", tuple(f"data_batch_{i}.bin" for i in range(1, 6))),
        "test": _cifar10("test", ("test_batch.bin",)),
    },
}
