"""Base classes of the kinds of files."""

import contextlib
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from typing_extensions import override

from benchmarks.fuzz import mutations
from benchmarks.fuzz.mutations import Rng


class Kind(ABC):
    """One kind of file, in a folder of its own."""

    def __init__(self, folder: Path):
        """Write the valid example into `folder`."""
        self.folder = folder

    @abstractmethod
    def mutate(self, rng: Rng) -> str:
        """Restore the valid example, damage it, and return the mutation's name."""

    @abstractmethod
    def read(self) -> str:
        """Read the damaged file as lopt does.

        Returns:
            What became of it, such as ``"accepted"``.

        Raises:
            UserError: If the file is refused.
            AssertionError: If the result is wrong.
        """


class JsonFile(Kind):
    """A file with one JSON value."""

    def __init__(self, folder: Path, name: str):
        super().__init__(folder)
        self.path = folder / name
        self.data = self.path.read_bytes()

    @override
    def mutate(self, rng: Rng) -> str:
        mutations.remove(self.path)
        kind = str(rng.choice(["value", "value", "value", "bytes", "raw", "file"]))
        if kind == "file":
            return mutations.replace_file(self.path, rng)
        if kind == "raw":
            data = mutations.raw_json(rng)
        elif kind == "bytes":
            data = mutations.mutate_bytes(self.data, rng)
        else:
            data = mutations.dumps(mutations.mutate_json(json.loads(self.data), rng))
        self.path.write_bytes(data)
        return kind


def check_printable(command: Callable[[], object]) -> None:
    """Run a command and validate that it prints no escape sequences."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        command()
    odd = {c for c in output.getvalue() if not (c.isprintable() or c in "\n\t")}
    assert not odd, f"printed {odd}"
