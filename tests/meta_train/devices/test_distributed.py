"""Multi-process runs on loopback: same result as one process; all exit on a fault."""

import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import lopt
from tests.conftest import command_environment, wait_for

RUN = (
    *("quadratic-schedule", "--num-outer-steps=1500", "--checkpoint-every-steps=250"),
    *("--log-every-steps=500", "--evaluate-every-steps=0"),
)
SHORT = ("quadratic-schedule", "--num-outer-steps=50")
ROOT = Path(lopt.__file__).parent.parent
SECONDS = 90  # default timeout
LOPT = "from lopt.cli.main import main; sys.exit(main(sys.argv[1:]))"
FAILING = """
import jax
from meta_train.outer.trainer import Trainer
run = Trainer.run
def fail(self, data, state, num):
    if jax.process_index() == 1 and int(state.step) >= 600:
        raise ArithmeticError("injected")
    return run(self, data, state, num)
Trainer.run = fail
"""


@pytest.fixture
def launch(tmp_path):
    """Function that starts the processes of one run; all are killed after the test."""
    started = []

    def start(
        *arguments, num=2, run_dirs=None, code="", flags=None, devices=1, roots=None
    ):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        processes = []
        for i in range(num):
            log = tmp_path / f"log-{len(started)}"
            command = [
                *(sys.executable, "-c", f"import sys\n{code}\n{LOPT}"),
                *("meta-train", *arguments, "--wandb=off"),
                *("--run-dir", (run_dirs or ["run"] * num)[i]),
                *("--coordinator-address", address),
                *("--num-processes", str(num), "--process-id", str(i)),
                *((flags or [()] * num)[i]),
            ]
            with log.open("w") as file:
                process = subprocess.Popen(
                    command,
                    cwd=tmp_path,
                    env=command_environment(
                        JAX_PLATFORMS="cpu",
                        JAX_NUM_CPU_DEVICES=str(devices),
                        **({"PYTHONPATH": str(roots[i])} if roots else {}),
                    ),
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
            process.log = log
            processes.append(process)
            started.append(process)
        return processes

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait()


def ended(processes, seconds=SECONDS):
    """Wait for processes to exit; return their exit codes and output."""
    end = time.monotonic() + seconds
    codes = [p.wait(timeout=max(end - time.monotonic(), 0.1)) for p in processes]
    return codes, [p.log.read_text() for p in processes]


def theta(run_dir):
    return np.asarray(lopt.load_theta(run_dir / "optimizer.safetensors")[1])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Theta of the same run in one process, without faults."""
    folder = tmp_path_factory.mktemp("undisturbed")
    arguments = (*RUN, "--wandb=off", "--run-dir=run", "--estimator.deterministic")
    subprocess.run(
        [sys.executable, "-m", "lopt", "meta-train", *arguments],
        cwd=folder,
        env=command_environment(JAX_PLATFORMS="cpu"),
        check=True,
        capture_output=True,
    )
    return theta(folder / "run")


@pytest.mark.parametrize("num", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "deterministic", [True, pytest.param(False, marks=pytest.mark.slow)]
)
def test_several_processes_equal_one(num, deterministic, launch, tmp_path):
    flags = ("--estimator.deterministic",) if deterministic else ()
    for n, run_dir in ((1, "alone"), (num, "together")):
        processes = launch(*SHORT, *flags, num=n, run_dirs=[run_dir] * n)
        codes, logs = ended(processes)
        assert codes == [0] * n, logs
    for i, log in enumerate(logs):
        assert log.splitlines()[0].startswith(f"Process {i} of {num} on ")
    assert "Exported" in logs[0]
    assert "Exported" not in logs[1]
    alone, together = theta(tmp_path / "alone"), theta(tmp_path / "together")
    np.testing.assert_allclose(together, alone, rtol=0 if deterministic else 1e-5)


def kill(processes, which):
    processes[which].kill()


def freeze(processes, which):
    processes[which].send_signal(signal.SIGSTOP)


# Fault, index of its process, code to run first, and error message of the others.
FAULTS = {
    "a worker is killed": (kill, 1, "", "another process is gone"),
    "the coordinator is killed": (kill, 0, "", "gone|coordination service"),
    "a worker fails": (None, 1, FAILING, "Process 1 of 2.*ArithmeticError: injected"),
    "a worker freezes": (freeze, 1, "", "gone|stopped sending heartbeats"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_all_processes_exit_and_resume(fault, launch, undisturbed, tmp_path):
    inject, which, code, message = FAULTS[fault]
    arguments = (*RUN, "--estimator.deterministic")
    processes = launch(*arguments, code=code)
    wait_for(tmp_path / "run/checkpoints/500/sha256.json", *processes)
    if inject is not None:
        inject(processes, which)
    others = [p for i, p in enumerate(processes) if i != which]
    codes, logs = ended(others, seconds=30)
    assert 0 not in codes
    for log in logs:
        assert re.search(message, log), log
    if inject is freeze:
        processes[which].send_signal(signal.SIGCONT)
    codes, _ = ended([processes[which]], seconds=30)
    assert codes != [0]
    codes, logs = ended(launch(*arguments))
    assert codes == [0, 0], logs
    assert "Resumed from the checkpoint at step" in logs[0]
    np.testing.assert_array_equal(theta(tmp_path / "run"), undisturbed)


@pytest.mark.slow
def test_preemption_saves_the_same_step_everywhere(launch, undisturbed, tmp_path):
    arguments = (*RUN, "--estimator.deterministic")
    processes = launch(*arguments)
    wait_for(tmp_path / "run/checkpoints/250/sha256.json", *processes)
    processes[1].send_signal(signal.SIGTERM)
    codes, logs = ended(processes, seconds=30)
    assert codes == [0, 0], logs
    assert "Stopped by SIGTERM and saved at step" in logs[0]
    codes, logs = ended(launch(*arguments))
    assert codes == [0, 0], logs
    np.testing.assert_array_equal(theta(tmp_path / "run"), undisturbed)


@pytest.mark.slow
def test_a_run_moves_between_numbers_of_devices_and_processes(
    launch, undisturbed, tmp_path
):
    arguments = (*RUN, "--estimator.deterministic")
    stops = ((1, 8, 250), (2, 2, 750), (1, 16, 1250), (1, 1, None))
    for num, devices, step in stops:
        processes = launch(*arguments, num=num, devices=devices)
        if step is not None:
            path = tmp_path / f"run/checkpoints/{step}/sha256.json"
            wait_for(path, *processes)
            processes[0].send_signal(signal.SIGTERM)
        codes, logs = ended(processes)
        assert codes == [0] * num, logs
    np.testing.assert_array_equal(theta(tmp_path / "run"), undisturbed)


def test_processes_that_were_started_differently_are_refused(launch, tmp_path):
    flags = [(), ("--estimator.std=0.3", "--seed=1")]
    codes, logs = ended(launch(*SHORT, flags=flags))
    assert codes == [2, 2]
    assert "process 1 differs from process 0" in logs[0]
    assert "flags.estimator.std: 0.1 -> 0.3" in logs[0]
    assert "flags.seed: 0 -> 1" in logs[0]
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_processes_with_different_sources_are_refused(launch, tmp_path):
    other = tmp_path / "other"
    for package in ("lopt", "tasks", "meta_train", "evaluation"):
        shutil.copytree(ROOT / package, other / package)
    with (other / "lopt" / "errors.py").open("a") as file:
        file.write("# changed\n")
    codes, logs = ended(launch(*SHORT, roots=[ROOT, other]))
    assert codes == [2, 2]
    assert re.search("process 1 differs from process 0.*sources: ", logs[0], re.S)


UNLIKE_PROGRAM = """
import jax
from meta_train.estimators import antithetic
draw = antithetic.draw_noise
def other(theta, num, std, key):
    noise = draw(theta, num, std, key)
    own = 1 + (jax.process_index() == 1)
    return jax.tree.map(lambda x: own * x, noise)
antithetic.draw_noise = other
"""
UNLIKE_THETA = """
import jax, numpy as np
from meta_train.runtime.loop import OuterLoop
save = OuterLoop._save
def other(self, state):
    if jax.process_index() == 1:
        def changed(old):
            new = np.asarray(old.addressable_data(0)) + 1.0
            return jax.make_array_from_callback(old.shape, old.sharding, lambda _: new)
        state = state.replace(theta=jax.tree.map(changed, state.theta))
    save(self, state)
OuterLoop._save = other
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "message"),
    [(UNLIKE_PROGRAM, "the program of the run"), (UNLIKE_THETA, "theta at step 20")],
)
def test_processes_that_compute_differently_are_refused(code, message, launch):
    flags = ("--checkpoint-every-steps=20",)
    codes, logs = ended(launch(*SHORT, *flags, code=code))
    assert codes == [2, 2], logs
    assert f"{message} must be equal on all processes; process 1 differs" in logs[0]


KILLED_WHILE_RESTORING = """
import jax, os, signal
from meta_train.runtime.checkpoint import Checkpoints
restore = Checkpoints.restore
def other(self, template):
    if jax.process_index() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return restore(self, template)
Checkpoints.restore = other
"""


@pytest.mark.slow
def test_a_checkpoint_is_not_blamed_for_a_process_that_is_killed(launch, tmp_path):
    flags = ("--checkpoint-every-steps=20",)
    codes, logs = ended(launch(*SHORT, *flags))
    assert codes == [0, 0], logs
    codes, logs = ended(launch(*SHORT, *flags, code=KILLED_WHILE_RESTORING))
    assert codes[0] not in (0, 2), logs
    assert "it has another" not in logs[0]
    codes, logs = ended(launch(*SHORT, *flags))
    assert codes == [0, 0], logs


@pytest.mark.slow
def test_a_run_directory_that_others_do_not_see_is_refused(launch):
    codes, logs = ended(launch(*SHORT, run_dirs=["here", "there"]))
    assert codes == [2, 2]
    assert "must be a directory that all hosts share" in logs[0]
