"""Examples run as their first lines say."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.conftest import command_environment

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_two_processes_on_one_machine(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    commands = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", EXAMPLES / "two_processes.sh", tmp_path / "run"],
        env=command_environment(PATH=commands, PORT=str(port), JAX_PLATFORMS="cpu"),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    for i in range(2):
        assert f"Process {i} of 2 on " in done.stdout
    assert (tmp_path / "run" / "optimizer.safetensors").exists()
