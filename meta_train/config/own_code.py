"""Tasks, optimizers and estimators from a user's own files and installed packages.

A file that the command line names, as in ``--tasks my_task.py:Bowl`` or ``--code``, is
executed, and the classes that it defines are registered. A run records the path and the
SHA-256 of such files. Commands that read a run directory execute a recorded file only
if its content is unchanged and this user has named it on this machine before: run
directories may come from anyone.
"""

import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import inspect
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from lopt.base import LearnedOptimizer
from lopt.cache_directory import cache_folder, check_private, make_private
from lopt.errors import UserError, lookup, one_line
from lopt.registry import OPTIMIZERS, register_optimizer
from meta_train.estimators import ESTIMATORS, GradientEstimator, register_estimator
from tasks.base import Family, UnrolledSystem
from tasks.zoo import ZOO, register_task
from tasks.zoo_queries import task_classes

PLUGINS = "lopt"
"""Group of entry points of installed packages; each names a module to import."""


@dataclass(frozen=True)
class SourceFile:
    """File of a user whose classes a run uses."""

    path: str
    """Absolute path."""
    sha256: str
    """Hash of its content."""


_imported: dict[str, SourceFile] = {}


def imported() -> tuple[SourceFile, ...]:
    """Files that this process has imported, in order."""
    return tuple(_imported.values())


def import_plugins() -> None:
    """Import the modules that installed packages declare as entry points.

    Raises:
        UserError: If a module cannot be imported.
    """
    for point in importlib.metadata.entry_points(group=PLUGINS):
        try:
            register_classes(point.load())
        except Exception as error:
            raise UserError(
                f"the plugin {point.value} of the package "
                f"{point.dist.name if point.dist else '?'} must be importable; it "
                f"raised {_described(error)}. Try to update or uninstall the package."
            ) from error


def class_name(reference: str) -> str:
    """Resolve ``FILE.py:CLASS`` to the name of the class, after importing the file.

    Other names are returned unchanged.

    Raises:
        UserError: If the file cannot be imported, or does not register such a class.
    """
    file, colon, name = reference.rpartition(":")
    if not colon or not file.endswith(".py"):
        if reference.endswith(".py"):
            raise UserError(
                f"a class of a file must be named after it; got {reference!r}. "
                f"Try {reference}:NAME."
            )
        return reference
    classes = _classes(import_file(Path(file)))
    kind = lookup(f"class of {Path(file).name}", name, classes)
    if inspect.isabstract(kind):
        missing = ", ".join(sorted(kind.__abstractmethods__))
        raise UserError(f"{reference} must implement {missing}.")
    if not issubclass(kind, _KINDS):
        raise UserError(
            f"{reference} must be a task, a system, a learned optimizer or an "
            "estimator; it has none of their base classes."
        )
    return name


def import_file(path: Path) -> ModuleType:
    """Execute a file that the user has named, register its classes, and remember it.

    Raises:
        UserError: If the file is missing, raises an exception, or defines a class whose
            name is taken.
    """
    path = path.expanduser().absolute()
    content = _read(path)
    module = _import(path, content)
    _trust(hashlib.sha256(content).hexdigest())
    return module


def import_recorded(source: SourceFile) -> None:
    """Import a file that a run directory names, if it is trusted and unchanged.

    Raises:
        UserError: If it is missing or changed, or this user has not named it before.
    """
    if source.path in _imported:
        return
    path = Path(source.path)
    hint = f"Try --code {path.name} to use a file that you trust instead."
    if any(Path(known.path).name == path.name for known in _imported.values()):
        return  # A file of that name was given by --code.
    try:
        content = _read(path)
    except UserError as error:
        raise UserError(f"the run uses {path}: {error} {hint}") from error
    found = hashlib.sha256(content).hexdigest()
    if found != source.sha256:
        raise UserError(
            f"{path} must be unchanged since the run began; its SHA-256 was "
            f"{source.sha256[:12]} and is {found[:12]}. {hint}"
        )
    if not _is_trusted(found):
        raise UserError(
            f"the run uses code of {path}, which you have not used on this machine "
            f"before. {hint}"
        )
    _import(path, content)


def register_classes(module: ModuleType) -> None:
    """Register every concrete optimizer, estimator, task and system of a module.

    Tasks and systems are registered with their defaults under the name of the class;
    those that have fields without a default are left out.

    Raises:
        UserError: If the name of a class is taken.
    """
    registered = {**OPTIMIZERS, **ESTIMATORS, **task_classes()}
    for name, kind in _classes(module).items():
        if inspect.isabstract(kind) or not issubclass(kind, _KINDS):
            continue
        # Files refer to classes of all kinds by name alone.
        known = registered.get(name, kind)
        if known.__module__ != kind.__module__:
            raise UserError(
                f"a class must have a name of its own; {name} of {module.__file__} is "
                f"also {known.__module__}.{name}. Try My{name}."
            )
        _check_class(kind)
        if issubclass(kind, LearnedOptimizer):
            register_optimizer(kind)
        elif issubclass(kind, GradientEstimator):
            register_estimator(kind)
        elif issubclass(kind, Family | UnrolledSystem) and name not in ZOO:
            try:
                problem: Any = kind()
            except TypeError:
                continue
            register_task(name, problem)


def _check_class(kind: type) -> None:
    """Validate that a class is hashable and that a task loads any split.

    Raises:
        UserError: If not.
    """
    if not dataclasses.is_dataclass(kind) or kind.__hash__ is None:
        raise UserError(
            f"{kind.__name__} must be a frozen dataclass, since configurations are "
            "hashed. Try @dataclass(frozen=True)."
        )
    if issubclass(kind, Family):
        try:
            inspect.signature(kind.load).bind(None, "train")
        except TypeError as error:
            raise UserError(
                f"`load` of {kind.__name__} must accept a split; {error}. Try "
                'def load(self, split="train").'
            ) from error


_KINDS = (LearnedOptimizer, GradientEstimator, Family, UnrolledSystem)


def _classes(module: ModuleType) -> dict[str, type]:
    """Classes that a module defines itself, by name."""
    return {
        name: kind
        for name, kind in vars(module).items()
        if inspect.isclass(kind) and kind.__module__ == module.__name__
    }


def _read(path: Path) -> bytes:
    if path.suffix != ".py" or not path.is_file():
        raise UserError(f"{path} must be a Python file; there is no such file.")
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} must be readable; {error.strerror}.") from error


def _import(path: Path, content: bytes) -> ModuleType:
    source = SourceFile(str(path), hashlib.sha256(content).hexdigest())
    # The name depends on the path only, so that a class keeps its identity.
    name = f"{path.stem}_{hashlib.sha256(source.path.encode()).hexdigest()[:8]}"
    if _imported.get(source.path) == source:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # for the imports of the file
    try:
        # Compile the bytes that were hashed; the file may change in the meantime.
        exec(compile(content, str(path), "exec"), vars(module))
    except Exception as error:
        del sys.modules[name]
        raise UserError(
            f"{path.name} must be importable; it raised {_described(error, path)}."
        ) from error
    register_classes(module)
    _imported[source.path] = source
    return module


def _described(error: Exception, path: Path | None = None) -> str:
    """Class and message of an exception, and its line in a file, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    where = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {one_line(error)}{where}"


def _trust(sha256: str) -> None:
    """Remember a file of this user; without a private cache, nothing is remembered."""
    folder = cache_folder("trusted_code")
    if folder is None:
        return
    try:
        make_private(folder)
        (folder / sha256).touch()
    except OSError:
        return


def _is_trusted(sha256: str) -> bool:
    folder = cache_folder("trusted_code")
    try:
        if folder is None:
            return False
        check_private(folder)
        check_private(folder / sha256)
    except OSError:
        return False
    return True
