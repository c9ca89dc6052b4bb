"""The sweep: what is refused before anything is written, and weights or text that would spoil a table."""

import dataclasses
import os
import re
from pathlib import Path

import pytest

from rope_jax.experiment.config import SweepConfig
from rope_jax.experiment.measure import Laboratory
from rope_jax.experiment.progress import Reporter
from rope_jax.experiment.results import read_results
from rope_jax.experiment.sweep import Sweep
from tests.experiment.tiny import passkey_config, run, text_config


def test_text_that_changed_is_refused(tmp_path):
    config = text_config(tmp_path)
    with Sweep(config, metrics=("training",)) as sweep:
        sweep.run()
        (digest,) = {row["corpus"] for row in sweep.rows()}
        (weights,) = (sweep.folder / "checkpoints").iterdir()
        assert len(digest) == 64
        assert weights.name.endswith(digest[:12])
    file = tmp_path / "corpus" / "3.txt"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"!")
    with pytest.raises(ValueError, match=rf"`data.source` must lead to the text .* {digest[:12]} in .*names differ"):
        Sweep(config)
    file.write_bytes(content)
    os.rename(file, file.with_name("9.txt"))
    with pytest.raises(ValueError, match="names differ"):
        Sweep(config)
    os.rename(file.with_name("9.txt"), file)
    Sweep(config)._results.close()


def test_text_that_changes_between_seeds_stops_the_run(tmp_path):
    config = text_config(tmp_path)
    laboratory = Laboratory(config, tmp_path, Reporter())
    (tmp_path / "corpus" / "3.txt").write_bytes(b"a b c " * 500)
    with pytest.raises(RuntimeError, match=r"`data.source` must hold the same text for the whole run"):
        laboratory._task(1)


def test_keys_have_no_text(tmp_path):
    assert Laboratory(passkey_config(tmp_path), tmp_path, Reporter()).corpus is None


@pytest.mark.parametrize(("batch", "length"), [(512, 16), (8, 32)])
def test_text_too_short_for_a_batch_of_either_stage_is_refused_before_anything_is_written(tmp_path, batch, length):
    # The long file is held out; each of the others has one window of 16 and none of 32.
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for index in range(200):
        (corpus / f"{index}.txt").write_bytes(bytes(31))
    (corpus / "long.txt").write_bytes(bytes(3000))
    config = text_config(tmp_path)
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, batch=batch))
    with pytest.raises(ValueError, match=rf"training text must hold .* windows of {length + 1} tokens"):
        Sweep(config, metrics=("training",))
    assert not Path(config.output).exists()


def test_a_diverged_fine_tune_is_named_and_never_saved(tmp_path):
    config = text_config(tmp_path)
    config = dataclasses.replace(config, finetune=dataclasses.replace(config.finetune, learning_rate=1e30))
    for _ in range(2):  # the second start goes on from no broken weights
        outcome = run(config)
        (reason,) = outcome.failed
        assert re.search(r"at step [23]\. Lower finetune.learning_rate|after step 3", reason)
        assert outcome.waiting == 3
    folder = Path(config.output) / config.name
    assert [row["phase"] for row in read_results(folder)] == ["base"] * 6
    assert not [path for path in folder.glob("checkpoints/*/tuned*/*") if path.name.isdigit()]


def test_tuned_weights_without_a_number_are_not_given_the_plain_baseline(tmp_path, monkeypatch):
    config = text_config(tmp_path)
    scores = Laboratory._scores

    def broken(self, cell, schedules, tokens):
        losses, hits = scores(self, cell, schedules, tokens)
        return losses * (float("nan") if cell.phase == "tuned" else 1.0), hits

    monkeypatch.setattr(Laboratory, "_scores", broken)
    outcome = run(config)
    assert (outcome.finished, outcome.waiting) == (7, 2)
    (reason,) = outcome.failed
    assert "truncated_loss" in reason
    assert "must be finite; got nan" in reason


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("YaRN(original_length=-4)", "`original_length` must be at least 1; got -4"),
        ("YaRN(original_length=None)", "`original_length` must be a number; got None"),
        ("YaRN(original_length=True)", "`original_length` must be a number; got True"),
        ("YaRN(original_length=1e999)", "`original_length` must be at least 1; got inf"),
        ("YaRN(factor=None)", "`factor` must be a number; got None"),
        ("YaRN(factor=(1, 2))", "`factor` must be a number; got (1, 2)"),
        ("YaRN(factor='2')", "`factor` must be a number; got '2'"),
        (f"YaRN(factor={10**400})", "too large"),
    ],
)
def test_a_wrong_parameter_is_named_with_its_entry(tmp_path, method, message):
    config = text_config(tmp_path, sweep=SweepConfig(methods=("Identity()", method), multiples=(1, 2)))
    with pytest.raises((ValueError, TypeError)) as error:
        Sweep(config)
    assert str(error.value).startswith(f"`sweep.methods[1]`, {method}: ")
    assert message in str(error.value)
    assert not Path(config.output).exists()


def test_an_entry_of_the_fine_tunes_is_named_too(tmp_path):
    config = text_config(tmp_path)
    tuned = dataclasses.replace(config.finetune, methods=("NTKAware(factor=0.5)",))
    with pytest.raises(
        ValueError, match=r"^`finetune.methods\[0\]`, NTKAware\(factor=0.5\): `factor` must be at least 1"
    ):
        Sweep(dataclasses.replace(config, finetune=tuned))
