"""The package as installed: its version, its scripts and its configurations."""

import ast
import subprocess
import sys
import tomllib
from importlib.metadata import metadata
from importlib.resources import files

import pytest

import rope_jax
from rope_jax.experiment.config import load_config
from rope_jax.experiment.training.config import load_run
from tests.source import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))
LAZY = ("load_pretrained", "nn", "save_pretrained")
CONFIGS = sorted((ROOT / "configs").rglob("*.toml"))


def test_version_is_that_of_the_metadata():
    assert rope_jax.__version__ == metadata("rope-jax")["Version"] == PROJECT["version"]


def test_names_that_need_flax_are_there_on_first_use():
    tree = ast.parse((ROOT / "rope_jax" / "__init__.py").read_text(encoding="utf-8"))
    (lazy,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__getattr__")
    tests = [node for node in ast.walk(lazy) if isinstance(node, ast.Compare)]
    asked = {str(leaf.value) for test in tests for leaf in ast.walk(test) if isinstance(leaf, ast.Constant)}
    assert sorted(asked) == sorted(LAZY)
    assert all(getattr(rope_jax, name).__name__.endswith(name) for name in LAZY)
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        getattr(rope_jax, "absent")  # noqa: B009  (linters take the plain form for a slip)


def test_package_is_marked_as_typed():
    assert files("rope_jax").joinpath("py.typed").is_file()


def test_changelog_names_the_version_or_what_is_to_come():
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## [Unreleased]" in changes or f"## [{PROJECT['version']}]" in changes


def test_there_are_scripts_and_configurations():
    # The tests below run over what these lists hold.
    assert SCRIPTS and CONFIGS


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script_says_what_it_does_on_top(script):
    assert ast.get_docstring(ast.parse(script.read_text(encoding="utf-8")))


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script_answers_help(script, tmp_path):
    # From another folder: a script may not depend on where it is called.
    command = [sys.executable, str(script), "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.relative_to(ROOT)))
def test_configuration_loads(path):
    if path.parent.name == "train":
        assert load_run(path).config.name
    else:
        assert load_config(path).name


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.relative_to(ROOT)))
def test_configuration_opens_with_its_command(path):
    header = path.read_text(encoding="utf-8").splitlines()[:12]
    assert any(line.startswith("#") and "scripts/" in line for line in header), "its header must state the command"
