"""HTML report, rendered in a headless browser if one is installed."""

import json
import re
import shutil
import subprocess

import jax.numpy as jnp
import pytest

from evaluation import evaluate
from evaluation.report.write import write_report
from evaluation.suites import Case
from evaluation.training.cache import Cache
from lopt.optimizers.scheduled_sgd import ScheduledSGD
from tasks.synthetic.quadratic import RandomQuadratic

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
LOOK = """<script>window.addEventListener("load", () => {
  const images = [...document.images];
  parent.postMessage("FOUND" + JSON.stringify({
    width: innerWidth, page: document.documentElement.scrollWidth,
    drawn: images.filter(i => i.complete && i.naturalWidth > 100).length,
    images: images.length,
  }), "*");
});</script></body>"""
# An iframe, as a browser window cannot be as narrow as a phone.
FRAME = """<!doctype html><html><head><link rel="icon" href="data:,"></head><body>
<script>onmessage = (event) => { document.title = event.data; };</script>
<iframe src="looked.html" style="border: 0" width="WIDTH" height="1000"></iframe>
</body></html>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    cases = [Case("quadratic", RandomQuadratic(dim=4), 20, "test")] * 2
    good = (ScheduledSGD(), jnp.log(jnp.full(2, 0.05)))
    wild = (ScheduledSGD(), jnp.full(2, 20.0))
    few = {"num_seeds": 3, "num_tuning_seeds": 1, "baselines": ("sgd",)}
    results = evaluate({"good": good, "<wild> & co": wild}, cases, cache=Cache(), **few)
    write_report(folder, results)
    return folder / "report.html"


@pytest.mark.skipif(BROWSER is None, reason="NO BROWSER: chromium is not installed")
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_overflows_and_every_figure_is_there(page, width, tmp_path):
    looked = tmp_path / "looked.html"
    looked.write_text(page.read_text().replace("</body>", LOOK))
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.replace("WIDTH", str(width)))
    done = subprocess.run(
        [
            *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update"),
            *("--disable-sync", "--enable-logging=stderr", "--dump-dom"),
            f"--user-data-dir={tmp_path / 'profile'}",
            *("--window-size=1400,1200", frame.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ":CONSOLE" not in done.stderr, done.stderr
    title = re.search(r"<title>FOUND(.*?)</title>", done.stdout)
    assert title, done.stdout[-500:]
    found = json.loads(title.group(1))
    assert found["width"] == width
    assert found["page"] <= width
    assert found["drawn"] == found["images"] == 6


def test_names_are_escaped(page):
    text = page.read_text()
    assert "<wild>" not in text
    assert "&lt;wild&gt; &amp; co" in text
