"""What a folder of a run may hold that does not belong there: named before anything is computed, or cleared away."""

import dataclasses
import re
import shutil
from pathlib import Path

import pytest

from rope_jax.experiment.export import export
from rope_jax.experiment.training.metrics import lines_of
from rope_jax.experiment.training.rules import open_run
from rope_jax.experiment.training.session import Session
from rope_jax.experiment.training.settings import StageConfig
from tests.experiment.training.runs import run_config, trained


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    config = run_config(tmp_path_factory.mktemp("run"), stages=(StageConfig("base", 16, 5),))
    trained(config)
    return config, Path(config.output) / config.name


@pytest.fixture
def copied(finished, tmp_path):
    """The same run in a folder of its own, to be spoiled."""
    config, folder = finished
    shutil.copytree(folder, tmp_path / config.name)
    return dataclasses.replace(config, output=str(tmp_path)), tmp_path / config.name


@pytest.mark.parametrize("how", ["copied", "linked"])
def test_a_step_under_the_name_of_another_is_no_checkpoint(copied, how):
    config, folder = copied
    step, other = folder / "checkpoints" / "4", folder / "checkpoints" / "7"
    shutil.copytree(step, other) if how == "copied" else other.symlink_to(step)
    words = (
        rf"got step 7 of .* damaged \(ValueError: it holds step 4\)\. Delete the folder {other}: step 5 is used then"
    )
    with pytest.raises(ValueError, match=words):
        Session(open_run(config))


@pytest.mark.parametrize(
    "line", [b"\0\0\0\0", b"\xff\xfe", b"{}", b"5", b'{"kind": "train", "step": 4', b'["kind", "step", "stage"]']
)
def test_a_line_that_no_run_has_written_is_named(copied, line):
    config, folder = copied
    path = folder / "metrics.jsonl"
    count = len(lines_of(path))
    with path.open("ab") as file:
        file.write(line + b"\n")
    words = "`metrics` must be lines of JSON, each with kind, step and stage; got b"
    place = re.escape(f" in line {count + 1} of {path}. Delete it.")
    with Session(open_run(config)) as session, pytest.raises(ValueError, match=f"^{words}.*{place}$"):
        session.begin()


@pytest.mark.parametrize("name", ["metrics.jsonl", "record.json", "lock"])
def test_a_folder_where_a_file_belongs_is_named(copied, name):
    config, folder = copied
    (folder / name).unlink()
    (folder / name).mkdir()
    with pytest.raises(IsADirectoryError, match=f"`output` must have a file at {folder / name}; got a folder"):
        Session(open_run(config))


def test_an_export_of_other_weights_is_not_taken_for_that_of_the_run(copied):
    config, folder = copied
    (folder / "export").mkdir()
    with Session(open_run(config)) as session:
        assert session.saved == 5  # its own
    shutil.rmtree(folder / "checkpoints" / "5")
    words = rf"`output` must hold no export before the last step, 5; got {folder / 'export'} at step"
    with pytest.raises(FileExistsError, match=f"{words} 4"):
        Session(open_run(config))
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(FileExistsError, match=f"{words} 0"):
        Session(open_run(config))


def test_what_a_kill_leaves_of_an_export_is_cleared_away(tmp_path):
    def killed(draft: Path) -> None:
        (draft.parent / ".partial").mkdir()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(killed, tmp_path / "export")
    assert export(Path.mkdir, tmp_path / "export") == tmp_path / "export"
    assert [path.name for path in tmp_path.iterdir()] == ["export"]
