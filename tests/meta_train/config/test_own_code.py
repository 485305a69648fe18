"""Code of a user's files is registered when named, and trusted only then."""

import dataclasses
import hashlib
import os

import pytest

from lopt.errors import UserError
from lopt.registry import OPTIMIZERS
from meta_train.config import own_code
from meta_train.config.config_file import read_config, write_config
from meta_train.config.own_code import SourceFile, class_name, import_file
from meta_train.config.preset_configs import CONFIGS, compose
from tasks.zoo import ZOO

TASK = """
from dataclasses import dataclass
from tasks import RandomQuadratic

@dataclass(frozen=True)
class {name}(RandomQuadratic):
    '''A task of one's own.'''
"""
OPTIMIZER = """
from dataclasses import dataclass
from lopt import ScheduledSGD

@dataclass(frozen=True)
class {name}(ScheduledSGD):
    '''An optimizer of one's own.'''
"""


@pytest.fixture(autouse=True)
def _new_user(tmp_path, monkeypatch):
    """A user who has not named any file yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(own_code, "_imported", {})
    monkeypatch.syspath_prepend(tmp_path)


def written(path, text, name):
    path.write_text(text.format(name=name))
    return path


def recorded_run(tmp_path, file):
    """Directory of a run with an optimizer from `file`, as another process left it."""
    config = dataclasses.replace(
        compose(CONFIGS["quadratic-schedule"], optimizer=class_name(f"{file}:Mine")),
        run_dir=tmp_path / "run",
        sources=own_code.imported(),
    )
    config.run_dir.mkdir()
    write_config(config)
    own_code._imported.clear()
    del OPTIMIZERS["Mine"]
    return config.run_dir


def test_classes_of_a_file_are_selected_by_name(tmp_path):
    file = written(tmp_path / "my_task.py", TASK, "Bowl")
    assert class_name(f"{file}:Bowl") == "Bowl"
    assert type(ZOO["Bowl"].problem).__name__ == "Bowl"
    assert class_name(f"{file}:Bowl") == "Bowl"  # a second time
    assert class_name("digits-mlp") == "digits-mlp"
    (source,) = own_code.imported()
    assert source.path == str(file)


@pytest.mark.parametrize(
    ("text", "reference", "messages"),
    [
        (TASK, "my.py:Bowll", ["no class of my.py 'Bowll'", "'Bowl'"]),
        (TASK, "my.py", ["Try", "my.py:NAME"]),
        (TASK, "other.py:Bowl", ["must be a Python file", "other.py"]),
        ("import nothing_here", "my.py:Bowl", ["No module named", "(line 1)"]),
        ("x = 1\ndef", "my.py:Bowl", ["SyntaxError"]),
        ("class Bowl: pass", "my.py:Bowl", ["must be a task, a system"]),
        (
            "import lopt\nclass Bowl(lopt.PerTensorOptimizer): pass",
            "my.py:Bowl",
            ["must implement", "init_theta", "update_tensor"],
        ),
        (TASK.replace("{name}", "MLP"), "my.py:MLP", ["tasks.supervised.mlp.MLP"]),
        (TASK.replace("{name}", "PES"), "my.py:PES", ["meta_train.estimators.pes.PES"]),
    ],
)
def test_mistakes_in_a_file_take_one_line(text, reference, messages, tmp_path):
    (tmp_path / "my.py").write_text(text.replace("{name}", "Bowl"))
    with pytest.raises(UserError) as error:
        class_name(str(tmp_path / reference))
    assert "\n" not in str(error.value)
    for message in messages:
        assert message in str(error.value)


def test_a_run_of_this_user_imports_its_files(tmp_path):
    run_dir = recorded_run(tmp_path, written(tmp_path / "my.py", OPTIMIZER, "Mine"))
    optimizer = read_config(run_dir).systems[0].optimizer
    assert type(optimizer).__name__ == "Mine"


def test_a_changed_file_is_refused_unless_it_is_named(tmp_path):
    file = written(tmp_path / "my.py", OPTIMIZER, "Mine")
    run_dir = recorded_run(tmp_path, file)
    file.write_text(file.read_text() + "\nraise SystemExit('executed')\n")
    with pytest.raises(UserError, match=r"unchanged.*Try --code my.py"):
        read_config(run_dir)
    import_file(written(file, OPTIMIZER + "\nchanged = True\n", "Mine"))
    assert type(read_config(run_dir).systems[0].optimizer).__name__ == "Mine"


def test_a_missing_file_is_named(tmp_path):
    file = written(tmp_path / "my.py", OPTIMIZER, "Mine")
    run_dir = recorded_run(tmp_path, file)
    file.unlink()
    with pytest.raises(UserError, match=r"my.py must be a Python file.*--code my.py"):
        read_config(run_dir)


def test_code_that_a_run_of_others_names_is_not_executed(tmp_path, monkeypatch):
    file = written(tmp_path / "my.py", OPTIMIZER, "Mine")
    run_dir = recorded_run(tmp_path, file)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "of-another-user"))
    with pytest.raises(UserError, match="not used on this machine before"):
        read_config(run_dir)
    assert "Mine" not in OPTIMIZERS
    # A list that others can write is no evidence.
    folder = tmp_path / "of-another-user" / "lopt" / "trusted_code"
    folder.mkdir(parents=True)
    (folder / _sha256(file)).touch()
    os.chmod(folder, 0o777)
    with pytest.raises(UserError, match="not used on this machine before"):
        read_config(run_dir)


def _sha256(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_plugins_of_installed_packages_are_registered(tmp_path, monkeypatch):
    written(tmp_path / "my_plugin.py", OPTIMIZER, "Plugged")
    about = tmp_path / "my_plugin-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-plugin\n")
    (about / "entry_points.txt").write_text("[lopt]\nmine = my_plugin\n")
    own_code.import_plugins()
    assert OPTIMIZERS["Plugged"].__module__ == "my_plugin"
    (about / "entry_points.txt").write_text("[lopt]\nmine = my_absent_plugin\n")
    with pytest.raises(UserError, match="my_absent_plugin of the package my-plugin"):
        own_code.import_plugins()


def test_a_source_is_part_of_the_configuration(tmp_path):
    file = written(tmp_path / "my.py", OPTIMIZER, "Mine")
    run_dir = recorded_run(tmp_path, file)
    (source,) = read_config(run_dir).sources
    assert source == SourceFile(str(file), _sha256(file))


MISTAKES = {
    "@dataclass\nclass Mine(Task):\n"
    "    load = init_params = sample_batch = loss = len": "must be a frozen dataclass",
    "@dataclass(frozen=True)\nclass Mine(RandomQuadratic):\n"
    "    def load(self):\n        return ()": r"`load` of Mine must accept a split",
}


@pytest.mark.parametrize("code", MISTAKES, ids=["mutable", "load"])
def test_mistakes_in_a_task_are_named(code, tmp_path):
    file = tmp_path / "mistake.py"
    head = (
        "from dataclasses import dataclass\nfrom tasks import RandomQuadratic, Task\n"
    )
    file.write_text(f"{head}{code}\n")
    with pytest.raises(UserError, match=MISTAKES[code]):
        class_name(f"{file}:Mine")
