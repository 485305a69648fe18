"""The tutorial notebook runs in a kernel, shows its progress and can be interrupted."""

import os
import queue
import time
from pathlib import Path

import nbclient
import nbformat
import pytest
from jupyter_client.manager import KernelManager

from tests.conftest import command_environment

NOTEBOOK = Path(__file__).parent.parent / "examples" / "own_task.ipynb"


@pytest.fixture(autouse=True)
def _kernel_environment(monkeypatch, tmp_path):
    for name, value in command_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    monkeypatch.chdir(tmp_path)


def code_cells():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_from_a_task_to_a_plot_takes_less_than_40_lines():
    lines = [line for cell in code_cells()[:3] for line in cell.source.splitlines()]
    assert len([line for line in lines if line.strip()]) < 40


def test_the_notebook_runs(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    _, trained, plotted, applied = (
        "".join(o.get("text", "") + str(o.get("data", "")) for o in cell.outputs)
        for cell in cells
    )
    assert "░" in trained
    assert "sine 300/300" in trained
    assert "Exported to" in trained
    assert "image/png" in plotted
    assert float(applied.split("final loss: ")[1]) < 0.1
    assert (tmp_path / "runs" / "sine" / "optimizer.safetensors").exists()


def run_code(client, code):
    """Execute code in a kernel; return its reply and its text output."""
    message = client.execute(code)
    reply, text = client.get_shell_msg(timeout=300), ""
    while True:
        try:
            found = client.get_iopub_msg(timeout=5)
        except queue.Empty:
            return reply["content"], text
        if found["parent_header"].get("msg_id") == message:
            text += found["content"].get("text", "")
            if found["content"].get("execution_state") == "idle":
                return reply["content"], text


LONG_RUN = """
import dataclasses
from pathlib import Path
from meta_train import CONFIGS, meta_train
config = dataclasses.replace(
    CONFIGS["quadratic-schedule"], num_outer_steps=10**7, run_dir=Path("run"),
    loggers=(), evaluate_every_steps=0,
)
result = meta_train(config)
"""


def test_an_interrupt_saves_and_keeps_the_kernel(tmp_path):
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(tmp_path), env=dict(os.environ))
    client = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=60)
        message = client.execute(LONG_RUN)
        metrics = tmp_path / "run" / "metrics.jsonl"
        end = time.monotonic() + 120
        while not (metrics.exists() and metrics.stat().st_size):
            assert time.monotonic() < end
            time.sleep(0.05)
        for _ in range(2):  # a further interrupt does not end the kernel
            manager.interrupt_kernel()
        reply = client.get_shell_msg(timeout=120)
        assert reply["parent_header"]["msg_id"] == message
        assert reply["content"]["status"] == "ok", reply["content"]
        code = "print(result.num_outer_steps, *sorted(Path('run').iterdir()))"
        reply, text = run_code(client, code)
        assert reply["status"] == "ok"
        steps, names = text.split(" ", 1)
        assert 0 < int(steps) < 10**7
        assert "run/checkpoints" in names
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
