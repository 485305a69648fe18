"""The examples in the documentation run as they stand."""

import re
from pathlib import Path

import jax
import pytest

import lopt
from lopt.mlp import PerParameterMLP

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_python_in_the_readme_runs(block, tmp_path, monkeypatch, key):
    monkeypatch.chdir(tmp_path)
    demo = tmp_path / "runs" / "demo"
    demo.mkdir(parents=True)
    optimizer = PerParameterMLP(width=8)
    theta = optimizer.init_theta(key)
    lopt.save(demo / "optimizer.safetensors", optimizer, theta)
    scope = {}
    exec(compile(block, "README.md", "exec"), scope)
    results = [scope.get("params"), scope.get("estimate")]
    assert any(jax.tree.leaves(result) for result in results)


def test_links_of_the_readme_lead_somewhere():
    targets = re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / "README.md").read_text())
    assert targets
    assert [t for t in targets if not (ROOT / t).exists()] == []
