"""A worker: what it must see of the leading process before it measures anything."""

import dataclasses
from pathlib import Path

import pytest

from rope_jax.experiment.config import config_hash
from rope_jax.experiment.executors import worker as module
from rope_jax.experiment.executors.worker import TOKEN, Errand, Worker, check_shared
from rope_jax.experiment.plan import plan
from rope_jax.experiment.results import cell_key
from tests.experiment.tiny import passkey_config, text_config


@pytest.fixture
def errand(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    monkeypatch.chdir(tmp_path)
    config = passkey_config(tmp_path)
    (tmp_path / TOKEN).write_text("mine")
    return Errand(config, config_hash(config), tmp_path, tmp_path, "mine", None, None)


@pytest.mark.parametrize("content", [None, "another's"])
def test_a_folder_that_is_not_shared_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / TOKEN).write_text(content)
    with pytest.raises(RuntimeError, match=r"`output` must be on storage that every machine shares"):
        check_shared(tmp_path, "mine", patience=0.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"digest": "0" * 64}, "`rope_jax` must be of one version on every machine"),
        ({"corpus": "0" * 64}, "`data.source` must lead to the same files on every machine"),
        ({"checkpoint": "0" * 64}, "`model.checkpoint` must lead to the same files on every machine"),
    ],
)
def test_a_machine_with_other_files_is_refused(errand, change, message):
    with pytest.raises(RuntimeError, match=message):
        Worker(dataclasses.replace(errand, **change)).prepare()


def test_weights_that_are_not_there_are_not_trained_in_passing(errand):
    worker = Worker(errand)
    assert "process" in worker.prepare()
    cell = plan(errand.config)[1]
    with pytest.raises(RuntimeError, match=r"checkpoints of training Identity at 16, seed 0 must be in .*base-seed0"):
        worker.measure(cell_key(errand.config, cell.row()), [])
    assert not (errand.folder / "checkpoints").exists()


def test_relative_paths_are_meant_from_where_the_leader_stands(errand, tmp_path, monkeypatch):
    config = text_config(tmp_path)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, source="corpus/*.txt"))
    away = tmp_path / "away"
    away.mkdir()
    monkeypatch.chdir(away)
    errand = dataclasses.replace(errand, config=config, digest=config_hash(config))
    with pytest.raises(RuntimeError, match=r"`data.source` must lead to the same files"):
        Worker(errand).prepare()  # found, with a digest that the leader did not give
    assert Path.cwd() == tmp_path
