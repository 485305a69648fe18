"""Exports of the packages: complete for type checkers, importable, and documented."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

PACKAGES = ("lopt", "tasks", "meta_train", "evaluation")
ROOT = Path(__file__).parent.parent
every_package = pytest.mark.parametrize("name", PACKAGES)


@every_package
def test_exports_are_those_that_type_checkers_see(name):
    package = importlib.import_module(name)
    tree = ast.parse((ROOT / name / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {node.module: [alias.asname for alias in node.names] for node in imports}
    assert {k: sorted(v) for k, v in seen.items()} == {
        k: sorted(v) for k, v in package._EXPORTS.items()
    }
    assert all(getattr(package, export) is not None for export in package.__all__)
    assert dir(package) == sorted(package.__all__)


@every_package
def test_exports_are_in_the_api_reference(name):
    page = (ROOT / "docs" / "api" / f"{name}.md").read_text()
    listed = set(re.findall(rf"::: {name}\.(\w+)$", page, re.M))
    package = importlib.import_module(name)
    classes = {e for e in package.__all__ if callable(getattr(package, e))}
    assert classes <= listed


@every_package
def test_importing_a_package_does_not_import_jax(name):
    code = f"import sys, {name}; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_export_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"'tasks' has no attribute 'MLPP'"):
        importlib.import_module("tasks").MLPP  # noqa: B018


def imported_modules(package):
    """Top-level modules that the files of a package import."""
    for file in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module.split(".")[0]


@every_package
def test_imported_packages_are_declared(name):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    groups = [project["dependencies"]]
    # `lopt show` and the command line are part of `lopt`, and need the extra `train`.
    groups += [extras[extra] for extra in extras.keys() - {"dev", "docs"}]
    names = [re.match(r"[\w.-]+", line) for group in groups for line in group]
    declared = {match[0].lower().replace("_", "-") for match in names if match}
    known = set(sys.stdlib_module_names) | set(PACKAGES)
    modules = set(imported_modules(name)) - known
    distributions = packages_distributions()
    for module in modules & set(distributions):
        found = {d.lower().replace("_", "-") for d in distributions[module]}
        assert found & declared, f"{module} is imported and not declared"
