"""The smaller parts of a run: its text, its lines, its arithmetic."""

import dataclasses
import os

import jax
import numpy as np
import pytest

from rope_jax import nn
from rope_jax.experiment.recipe.settings import RecipeConfig
from rope_jax.experiment.training.command import main
from rope_jax.experiment.training.export import _letters
from rope_jax.experiment.training.feed import on_mesh
from rope_jax.experiment.training.metrics import Metrics, lines_of
from rope_jax.experiment.training.settings import StageConfig
from rope_jax.experiment.training.start import started
from rope_jax.experiment.training.text import read_text
from rope_jax.experiment.training.throughput import model_flops, peak, utilisation
from rope_jax.parallel import MeshShape, batch_sharding, make_mesh
from tests.experiment.training.runs import run_config


def test_what_is_held_out_is_held_out_of_every_stage(tmp_path):
    config = run_config(tmp_path)
    whole = config.data.sources[0]
    halves = (dataclasses.replace(whole, longest=2540, weight=3.0), dataclasses.replace(whole, shortest=2541))
    stages = (StageConfig("one", 16, 4), StageConfig("two", 32, 4, data=RecipeConfig(sources=halves)))
    text = read_text(started(dataclasses.replace(config, stages=stages)))
    held_out = {document.tokens.tobytes() for document in text.documents}
    kept = [{document.tokens.tobytes() for s in corpus.sources for document in s.documents} for corpus in text.corpora]
    assert sum(map(len, held_out)) >= 3000
    assert kept[0] == kept[1] and not kept[0] & held_out
    assert [source.config for source in text.corpora[1].sources] == [
        dataclasses.replace(half, weight=1.0) for half in halves
    ]


def test_lines_that_are_done_again_or_torn_are_dropped(tmp_path):
    metrics = Metrics(tmp_path, run_config(tmp_path))
    for step in (1, 2, 3):
        metrics.write("train", step, "base", loss=1.0 / step, mfu=None)
    with metrics.path.open("a") as file:
        file.write('{"kind": "train", "step": 4, "st')
    metrics.keep(lambda line: line["step"] <= 2)
    metrics.write("train", 3, "base", loss=0.5)
    assert [line["step"] for line in lines_of(metrics.path)] == [1, 2, 3]
    assert lines_of(metrics.path)[-1] == {"kind": "train", "step": 3, "stage": "base", "loss": 0.5}


def test_events_for_tensorboard(tmp_path):
    config = run_config(tmp_path)
    config = dataclasses.replace(config, log=dataclasses.replace(config.log, tensorboard=True))
    metrics = Metrics(tmp_path, config)
    metrics.write("evaluation", 2, "base", loss={"16": 1.5, "32": 1.25}, tail={"16": 1.0})
    metrics.close()
    (events,) = (tmp_path / "tensorboard").iterdir()
    written = events.read_bytes()
    for tag in (b"evaluation/loss/16", b"evaluation/loss/32", b"evaluation/tail/16"):
        assert tag in written


def test_another_process_writes_nothing(tmp_path):
    config = run_config(tmp_path)
    metrics = Metrics(tmp_path, config, writes=False)
    metrics.write("train", 1, "base", loss=1.0)
    metrics.keep(lambda line: False)
    assert not (tmp_path / "metrics.jsonl").exists()


@pytest.mark.parametrize(("tied", "looked_up"), [(True, 0), (False, 100 * 16)])
def test_operations_of_a_token(tied, looked_up):
    shape = nn.DecoderConfig(vocab=100, embed=16, layers=3, heads=2, head_dim=8, mlp=16, tied=tied, pattern="LG")
    shape = dataclasses.replace(shape, windows=(("L", 10),))
    # Two of the three layers see 10 tokens, the other all 64; scores and values, forward and backward: 2 x 2 x 3.
    assert model_flops(shape, 10_000, 64) == 6 * (10_000 - looked_up) + 12 * 2 * 8 * (10 + 64 + 10)


def test_utilisation_is_of_the_peak_where_that_is_known():
    kinds = ("TPU v5 lite", "TPU v5p", "NVIDIA H200", "cpu")
    assert [peak(kind) for kind in kinds] == [197e12, 459e12, 989e12, None]
    assert utilisation(197e12, 2.0, "TPU v5e", 2) == pytest.approx(0.25)
    assert utilisation(1.0, 1.0, "cpu", 1) is None


def test_tokens_are_dealt_out_with_their_positions():
    mesh = make_mesh(MeshShape(), devices=jax.devices()[:1])
    positions = np.arange(8, dtype=np.int32)[None]
    placed = on_mesh({"positions": positions}, batch_sharding(mesh), 2, "zigzag")
    assert placed["positions"].tolist() == [[0, 1, 6, 7, 2, 3, 4, 5]]


def test_every_byte_has_a_letter_of_its_own():
    letters = _letters()
    assert sorted(letters) == list(range(256))
    assert len(set(letters.values())) == 256
    assert (letters[ord("a")], letters[ord(" ")]) == ("a", "Ġ")


@pytest.mark.parametrize(("devices", "threads"), [("8", "64"), ("1", None)])
def test_simulated_devices_have_threads_enough_for_their_collectives(tmp_path, monkeypatch, devices, threads):
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", devices)
    monkeypatch.setenv("PJRT_NPROC", "")
    monkeypatch.delenv("PJRT_NPROC")
    assert main([str(tmp_path / "absent.toml")]) == 2
    assert os.environ.get("PJRT_NPROC") == threads


def test_a_source_is_read_with_its_own_bounds(tmp_path):
    config = run_config(tmp_path)
    bounded = dataclasses.replace(config.data.sources[0], shortest=10**9)
    with pytest.raises(ValueError, match=r"`data\.sources\[0\]` must hold documents of 1000000000"):
        read_text(started(dataclasses.replace(config, data=RecipeConfig(sources=(bounded,)))))
