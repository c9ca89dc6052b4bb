"""The commands that the README prints: their options are ones that the scripts know."""

import re
import shlex

import pytest

from rope_jax.experiment.config import load_config
from rope_jax.experiment.training.config import load_run, read_run
from tests.source import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
OTHERS = ("--checkpoint", "--text", "--distributed", "--executor", "--address")
SWEEPS, RUNS = (re.findall(rf"python scripts/{script}\.py ([^#`\n]*)", README) for script in ("extrapolate", "train"))


def overrides(command: str) -> list[str]:
    """The dotted settings of a command, with their values; placeholders stand for a number."""
    # One command stands in quotes itself, as the argument of another.
    words, kept, own = shlex.split(command if command.count('"') % 2 == 0 else command.replace('"', "")), [], False
    for word in words:
        if word.startswith("--"):
            own = word.split(".")[0] not in (*OTHERS, "--ray") and not word.startswith("--distributed")
        if own:
            kept.append(word)
    return kept


@pytest.mark.parametrize("command", dict.fromkeys(SWEEPS))
def test_a_sweep_knows_its_options(command):
    try:
        load_config(ROOT / "configs" / "quickstart.toml", overrides(command))
    except ValueError as error:
        # Rules between settings may need the checkpoint that the command names.
        assert "--checkpoint" in command and "checkpoint" in str(error)


@pytest.mark.parametrize("command", dict.fromkeys(RUNS))
def test_a_training_run_knows_its_options(command):
    # A checkpoint that a command names is a placeholder, and cannot be opened.
    read = read_run if "--model.checkpoint" in command else load_run
    read(ROOT / "configs" / "train" / "quickstart.toml", overrides(command))


def test_there_are_commands_with_options():
    assert min(sum(bool(overrides(command)) for command in commands) for commands in (SWEEPS, RUNS)) > 1
