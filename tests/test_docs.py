"""Documentation: code blocks run, links resolve, all estimators are described."""

import dataclasses
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from unittest import mock

import jax
import pytest

import lopt
import meta_train
from lopt.cli.main import main
from lopt.optimizers.per_parameter_mlp import PerParameterMLP
from meta_train.config.config_file import write_config
from meta_train.config.own_code import class_name, imported
from meta_train.config.preset_configs import CONFIGS
from meta_train.estimators import ESTIMATORS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{i}")
    for page in PAGES
    for i, block in enumerate(
        re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    )
]

COMMANDS = sorted(
    {
        " ".join(command.split())
        for page in PAGES
        for block in re.findall(r"```(?:sh|bash)\n(.*?)```", page.read_text(), re.S)
        for command in re.findall(
            r"^.*?((?:lopt|make|pip install) [^\n\"#]*)",
            block.replace("\\\n", " "),
            re.M,
        )
    }
)
# The function of each command that does the work, after validation of its flags.
WORK = {
    "meta-train": "meta_train.runtime.run.meta_train",
    "plot": "meta_train.runtime.run_directory.check_writable",
    "runs": "meta_train.cli.runs._is_run",
    "export": "meta_train.runtime.export.export_run",
    "import": "lopt.files.released.import_theta",
    "show": "lopt.files.format.read_card",
    "evaluate": "evaluation.evaluate",
    "estimators": "meta_train.analysis.diagnostics.diagnose",
    "reproduce": "evaluation.paper.experiment.Experiment.check_prepared",
    "tune": "evaluation.tuners.episodes.OuterProblem.__init__",
    "plan": "meta_train.analysis.resource_plan.tpu_devices",
    "tasks": "tasks.size.size",
    "data": "tasks.cli.data._find_images",
}


class ReachedError(Exception):
    """Raised in place of the work of a command."""


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_in_the_documentation_are_valid(command, tmp_path, monkeypatch, key):
    program, name, *arguments = shlex.split(command)
    if program == "make":
        assert re.search(rf"^{name}:", (ROOT / "Makefile").read_text(), re.M)
        return
    if program == "pip":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        extra = arguments[0].removeprefix(".").strip("[]")
        assert arguments[0].startswith(".")
        assert not extra or extra in project["optional-dependencies"]
        return
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for run in ("mine", "other", "own", "tuned", "seeds/seed-0", "seeds/seed-1"):
        folder = tmp_path / "runs" / run
        folder.mkdir(parents=True)
        config = dataclasses.replace(CONFIGS["quadratic-schedule"], run_dir=folder)
        if run == "own":
            class_name("examples/bowl.py:Bowl")
            config = dataclasses.replace(config, sources=imported())
        write_config(config)
    for file in ("mine", "file", "celo", "celo2"):
        optimizer = PerParameterMLP(width=8)
        theta = optimizer.init_theta(key)
        lopt.save(tmp_path / f"{file}.safetensors", optimizer, theta)
    arguments = [{"N": "2", "I": "0"}.get(word, word) for word in arguments]
    with (
        mock.patch.dict(os.environ, JAX_NUM_CPU_DEVICES="1"),
        mock.patch("meta_train.devices.launch.start"),
        mock.patch("evaluation.cli.evaluate._files", return_value={}),
        mock.patch("meta_train.config.presets.Preset.check_prepared"),
        mock.patch(WORK[name], side_effect=ReachedError),
        pytest.raises(ReachedError),
    ):
        main([name, *arguments])


@pytest.mark.parametrize("block", BLOCKS)
def test_python_in_the_documentation_runs(block, tmp_path, monkeypatch, key):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    demo = tmp_path / "runs" / "demo"
    demo.mkdir(parents=True)
    optimizer = PerParameterMLP(width=8)
    theta = optimizer.init_theta(key)
    lopt.save(demo / "optimizer.safetensors", optimizer, theta)
    scope = {}
    exec(compile(block, "documentation", "exec"), scope)
    results = [scope.get(name) for name in ("params", "theta", "estimate", "row")]
    assert any(jax.tree.leaves(result) for result in results)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text())
    assert [t for t in targets if not (page.parent / t).exists()] == []


@pytest.mark.parametrize("name", sorted({*ESTIMATORS} & {*meta_train.__all__}))
def test_a_public_estimator_is_described_and_its_cost_is_there(name):
    page = (ROOT / "docs" / "estimators.md").read_text()
    assert f"**`{name}`**" in page
    assert re.search(rf"\| {name} \| \d", page), name


SKELETONS = [b for b in BLOCKS if "# Try it" in b.values[0]]


@pytest.mark.parametrize("block", SKELETONS)
def test_skeletons_are_short_and_pass_the_linter(block, tmp_path):
    code = block.split("\n\n\n# Try it\n")[0]
    assert len(code.splitlines()) < 40
    file = tmp_path / "skeleton.py"
    file.write_text(code + "\n")
    settings = ("--config", ROOT / "pyproject.toml", "--no-cache")
    ruff = [sys.executable, "-m", "ruff"]
    for command in (("check", *settings), ("format", "--check", *settings)):
        subprocess.run([*ruff, *command, file], check=True)


def test_the_skeletons_are_those_of_all_kinds():
    assert len(SKELETONS) == 3
