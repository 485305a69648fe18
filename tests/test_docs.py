"""Documentation: code blocks run, links resolve, all estimators are described."""

import re
from pathlib import Path

import jax
import pytest

import lopt
from lopt.optimizers.per_parameter_mlp import PerParameterMLP
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


def test_every_estimator_is_described_and_its_cost_is_there():
    page = (ROOT / "docs" / "estimators.md").read_text()
    for name in ESTIMATORS:
        assert f"**`{name}`**" in page
        assert re.search(rf"\| {name} \| \d", page), name
