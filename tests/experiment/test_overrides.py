"""Overrides of a command line: what they change, and a line for those that cannot be meant."""

from dataclasses import dataclass, field
from typing import Literal

import pytest

from rope_jax.experiment.overrides import overridden_by


@dataclass(frozen=True)
class Part:
    some_steps: int = 3
    loud: bool = False
    kind: Literal["one", "two"] = "one"


@dataclass(frozen=True)
class Whole:
    name: str = "whole"
    part: Part = field(default_factory=Part)
    parts: tuple[Part, ...] = (Part(), Part(7))


def test_words_change_what_they_name():
    words = ["--parts.1.some-steps", "9", "--part.loud", "--part.kind=two", "--name", "other"]
    assert overridden_by(words, Whole()) == Whole("other", Part(loud=True, kind="two"), (Part(), Part(9)))
    assert overridden_by([], Whole()) == Whole()


REFUSED = {
    "--part.some_stepz 4": "`--part.some_stepz` is not a setting. Did you mean `--part.some-steps`?",
    "--parts.1.some-stepz=4": "`--parts.1.some-stepz` is not a setting. Did you mean `--parts.1.some-steps`?",
    "--part.no-lou": "`--part.no-lou` is not a setting. Did you mean `--part.no-loud`?",
    "--some-steps 4": "`--some-steps` is not a setting. Did you mean `--part.some-steps`?",
    "--zzz": "`--zzz` is not a setting. CONFIG.toml --help lists all.",
    "--part.loud true": "`overrides` must be settings, each with its value; got 'true' alone. Write",
    "--part.some-steps x": "`overrides` must fit their settings: Error parsing --part.some-steps: invalid",
    "--part.some-steps": "`overrides` must fit their settings: Missing value for argument '--part.some-steps'.",
    "--part.kind three": "`overrides` must fit their settings: invalid choice 'three' for argument '--part.kind'.",
}


@pytest.mark.parametrize("words", REFUSED)
@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("columns", ["40", "200"])
def test_what_cannot_be_meant_is_a_sentence_on_any_terminal(words, columns, drawn, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("tyro._fmtlib._should_use_utf8_drawing_chars", lambda: drawn)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        overridden_by(words.split(), Whole())
    assert str(caught.value).startswith(REFUSED[words])
    assert not set(str(caught.value)) & set("│─╭╮\n") and "full helptext" not in str(caught.value)
    assert capsys.readouterr() == ("", "")


def test_help_lists_every_setting_and_leaves(capsys):
    with pytest.raises(SystemExit) as left:
        overridden_by(["--help"], Whole())
    assert left.value.code == 0
    assert "--parts.1.some-steps" in capsys.readouterr().out
