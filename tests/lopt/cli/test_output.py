"""Standard output: failures are reported once and end nothing."""

import io
import subprocess
import sys

import pytest

from lopt.cli.output import FaultTolerantOutput
from meta_train.runtime.progress import ProgressReport
from tests.conftest import command_environment


class Broken(io.StringIO):
    """Terminal that hangs up."""

    has_hung_up = True

    def write(self, text):
        if self.has_hung_up:
            raise OSError(5, "Input/output error")
        return len(text)

    def isatty(self):
        return True


def test_a_failure_is_reported_once(capsys):
    output = FaultTolerantOutput(Broken())
    for _ in range(3):
        assert output.write("text") == 4
    assert capsys.readouterr().err.count("cannot be written") == 1


def test_a_terminal_that_hangs_up_below_a_progress_bar_is_reported_once(
    capsys, monkeypatch
):
    # The bar redirects standard error to the terminal.
    terminal = Broken()
    terminal.has_hung_up = False
    monkeypatch.setattr("sys.stdout", terminal)
    with ProgressReport("run", 10) as progress:
        assert progress.console.is_terminal
        terminal.has_hung_up = True
        progress.say("text")
    assert capsys.readouterr().err.count("cannot be written") == 1


WRITES = """
from lopt.cli.main import main
main(["--help"])
with open("file", "w") as file:
    assert file.fileno() > 2
    print("to standard output", flush=True)
"""


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_replaced(closed, tmp_path):
    script = f'"{sys.executable}" -c "$0" {closed}'
    done = subprocess.run(
        ["bash", "-c", script, WRITES],
        cwd=tmp_path,
        env=command_environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert (tmp_path / "file").read_text() == ""
