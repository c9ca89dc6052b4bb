"""A loaded model: its logits, the schedules of its layers, its tokenizer, where it is found."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import rope_jax as rj
from rope_jax.huggingface.weights import Pretrained, digest, load_tokenizer, outline
from tests.huggingface.weights.families import CONFIGS, parameters, random_model, write_config

pytest.importorskip("safetensors", reason="the hf extra is not installed: safetensors")

IDS = np.random.default_rng(1).integers(0, 20, (2, 6))


@pytest.fixture(scope="module")
def model() -> Pretrained:
    return random_model("llama", num_hidden_layers=1)


def stretched(model: Pretrained, transform: rj.FrequencyTransform) -> rj.ModelRope:
    (spec,) = model.rope.specs.values()
    assert spec is not None
    return dataclasses.replace(model.rope, specs={"all": dataclasses.replace(spec, transform=transform)})


def test_positions_count_from_zero_unless_given(model: Pretrained) -> None:
    plain = model.logits(IDS)
    assert (plain.shape, plain.dtype) == ((2, 6, 20), jnp.float32)
    assert np.array_equal(plain, model.logits(IDS, positions=np.arange(6)[None]))
    assert np.array_equal(plain, model.logits(IDS, positions=np.arange(6)))
    moved = model.logits(IDS, positions=np.arange(6) * 3)
    assert np.max(np.abs(moved - plain)) > 1e-3
    schedule = model.schedules()
    assert np.allclose(plain, model.decoder(IDS, schedule, positions=np.arange(6)[None]), atol=1e-5)


def test_one_row_has_no_batch_axis(model: Pretrained) -> None:
    row = model.logits(IDS[0].tolist())
    assert row.shape == (6, 20)
    np.testing.assert_allclose(row, model.logits(IDS)[0], atol=1e-5)
    segments = [1, 1, 1, 2, 2, 2]
    parts = model.logits(IDS[0], [0, 1, 2, 0, 1, 2], segments)
    np.testing.assert_allclose(parts[3:], model.logits(IDS[0, 3:]), atol=1e-5)


def test_padding_changes_nothing(model: Pretrained) -> None:
    dynamic = stretched(model, rj.DynamicNTK(factor=2.0, original_length=4))
    for rope in (None, dynamic):
        alone = model.logits(IDS[:1, 2:], rope=rope)
        # Ids of padding are not read.
        padded = np.where(np.arange(6) < 2, 99, IDS)
        got = model.logits(padded, positions=[[-1, -1, 0, 1, 2, 3], [-1, -1, 0, 1, 2, 3]], rope=rope)
        np.testing.assert_allclose(got[0, 2:], alone[0], atol=1e-5)


def test_every_row_and_segment_has_a_schedule_of_its_own_length(model: Pretrained) -> None:
    dynamic = stretched(model, rj.DynamicNTK(factor=2.0, original_length=4))
    positions = np.array([[0, 1, 2, 3, 4, 5], [0, 1, 2, 90, 91, 92]])
    both = model.logits(IDS, positions, rope=dynamic)
    for row in (0, 1):
        np.testing.assert_allclose(both[row], model.logits(IDS[row], positions[row], rope=dynamic), atol=1e-5)
    segments = np.array([1, 1, 1, 2, 2, 2])
    packed = model.logits(IDS[0], positions[1], segments, rope=dynamic)
    np.testing.assert_allclose(packed[:3], model.logits(IDS[0, :3], rope=dynamic), atol=1e-5)
    np.testing.assert_allclose(packed[3:], model.logits(IDS[0, 3:], positions[1, 3:], rope=dynamic), atol=1e-5)
    assert np.max(np.abs(both[1] - model.logits(IDS[1], positions[1]))) > 1e-3


def test_another_rope_is_mapped_layer_by_layer() -> None:
    gemma = random_model("gemma3")
    assert set(gemma.schedules()) == {"sliding_attention", "full_attention"}
    one = rj.ModelRope({"all": rj.RopeSpec(8, theta=77.0)}, ("all",) * 3)
    schedules = gemma.schedules(rope=one)
    assert set(schedules) == {"sliding_attention", "full_attention"}
    for schedule in schedules.values():
        assert schedule is not None and np.array_equal(
            schedule.float64(), rj.geometric_schedule(8, theta=77.0).float64()
        )
    qwen = random_model("qwen2")
    by_window = rj.ModelRope({"plain": rj.RopeSpec(4), "far": rj.RopeSpec(4, theta=5e5)}, ("far", "plain", "plain"))
    theta = {
        group: 1 / float(s.inv_freq[1]) ** 2 for group, s in qwen.schedules(rope=by_window).items() if s is not None
    }
    assert theta["full_attention"] == pytest.approx(5e5) and theta["sliding_attention"] == pytest.approx(1e4)
    smollm = random_model("smollm3")
    assert smollm.schedules()["nope"] is None and smollm.schedules()["rope"] is not None


def test_ropes_that_the_decoder_does_not_apply_are_refused() -> None:
    model, spec = random_model("llama"), rj.RopeSpec(4)
    cases = {
        "must have the 3 layers": rj.ModelRope({"all": spec}, ("all",) * 2),
        "must have the layout 'half'": rj.ModelRope({"all": rj.RopeSpec(4, layout="interleaved")}, ("all",) * 3),
        "turn by the position streams": rj.ModelRope({"all": rj.RopeSpec(4, pair_axes=(0, 1))}, ("all",) * 3),
        "alike": rj.ModelRope({"a": spec, "b": rj.RopeSpec(4, theta=5e5)}, ("a", "b", "b")),
    }
    for message, rope in cases.items():
        for use in (lambda rope: model.logits(IDS, rope=rope), lambda rope: dataclasses.replace(model, rope=rope)):
            with pytest.raises(ValueError, match=f"`rope` must .*{message.removeprefix('must ')}"):
                use(rope)


def test_tokens_that_do_not_fit_are_refused(model: Pretrained) -> None:
    for ids, options, message in (
        ([[20]], {}, "`token_ids` must be from 0 to vocab - 1 = 19; got 20 to 20"),
        ([[-1]], {}, "`token_ids` must be from 0"),
        (np.zeros((1, 2, 3), int), {}, r"`token_ids` must be \[batch, seq\] or \[seq\]"),
        (IDS, {"positions": np.arange(5)}, "`positions` must be"),
        (IDS, {"segments": np.ones((3, 6), int)}, "`segments` must be"),
    ):
        with pytest.raises(ValueError, match=message):
            model.logits(ids, **options)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[1, 2], [3]], "`token_ids` must be rows of one length; got .* pad rows to one length"),
        ("text", r"`token_ids` must be integers; got dtype <U4\. Pass tokenizer.encode\(text\).ids"),
        ([0.0, 1.0], "`token_ids` must be integers; got dtype float64"),
        ([True, False], "`token_ids` must be integers; got dtype bool"),
        (None, "`token_ids` must be integers; got dtype object"),
        ([2**40], r"`token_ids` must be integers of 32 bits; got 1099511627776\. Pass tokenizer"),
        ([-(2**63)], "`token_ids` must be integers of 32 bits; got -9223372036854775808"),
        ([], r"`token_ids` must be \[batch, seq\] or \[seq\], not empty; got shape \(1, 0\)"),
    ],
)
def test_what_is_no_row_of_tokens(model: Pretrained, ids: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        model.logits(ids)
    if ids:
        # Under its own name in one row, too.
        for row in (IDS, IDS[0]):
            for argument in ("positions", "segments"):
                with pytest.raises(
                    (TypeError, ValueError), match=message.split(" must")[0].replace("token_ids", argument)
                ):
                    model.logits(row, **{argument: ids})


def test_far_positions_are_as_good_as_near_ones(model: Pretrained) -> None:
    near = model.logits(IDS)
    for start in (131_068, 2**24, 10_000_000, 2**31 - 7):
        np.testing.assert_allclose(model.logits(IDS, np.arange(start, start + 6)), near, atol=1e-4)


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_rope_of_the_decoder(model: Pretrained) -> None:
    spec = rj.RopeSpec(4)
    cases: tuple[tuple[Any, type[Exception], str], ...] = (
        (spec, TypeError, "`rope` must be a ModelRope; got RopeSpec"),
        (rj.YaRN(factor=2.0, original_length=32), TypeError, "`rope` must be a ModelRope; got YaRN"),
        (spec.schedule(), TypeError, "`rope` must be a ModelRope; got FrequencySchedule"),
        ("yarn", TypeError, "`rope` must be a ModelRope; got str"),
        (rj.ModelRope({"all": rj.RopeSpec(8)}, ("all",)), ValueError, "width 4; got rotary_dim 8 and head_dim 8"),
        (
            rj.ModelRope({"all": rj.RopeSpec(2, head_dim=8)}, ("all",)),
            ValueError,
            "width 4; got rotary_dim 2 and head_",
        ),
    )
    for rope, error, message in cases:
        for use in (lambda rope: model.logits(IDS, rope=rope), lambda rope: dataclasses.replace(model, rope=rope)):
            with pytest.raises(error, match=message):
                use(rope)
    # A spec that knows nothing of the channels that pass through.
    assert dataclasses.replace(model, rope=rj.ModelRope({"all": rj.RopeSpec(2)}, ("all",))).rope.layer_groups == (
        "all",
    )


def test_outline_says_what_loading_gives(model: Pretrained, tmp_path: Path) -> None:
    rj.save_pretrained(model, tmp_path / "saved")
    about, loaded = outline(tmp_path / "saved"), rj.load_pretrained(tmp_path / "saved")
    assert (about.decoder_config, about.rope.specs, about.config) == (
        loaded.decoder.config,
        loaded.rope.specs,
        loaded.config,
    )
    assert (about.trained_length, about.has_tokenizer) == (32, False)
    assert about.parameters == sum(array.size for array in parameters(loaded.decoder).values())
    assert rj.load_pretrained(tmp_path / "saved", dtype="bfloat16").decoder.config.dtype == "bfloat16"


def test_digest_is_of_configuration_and_weights(model: Pretrained, tmp_path: Path) -> None:
    rj.save_pretrained(model, tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    (tmp_path / "two" / "README.md").write_text("notes", encoding="utf-8")
    same = digest(tmp_path / "one")
    assert len(same) == 64 and digest(tmp_path / "two") == same
    write_config(tmp_path / "two", rms_norm_eps=1e-5)
    assert digest(tmp_path / "two") != same
    other = random_model("llama", num_hidden_layers=1)
    other.decoder.norm.scale[...] = other.decoder.norm.scale[...] + 1
    rj.save_pretrained(other, tmp_path / "three")
    assert digest(tmp_path / "three") != same


def test_tokenizer_and_its_files_go_along(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="the hf extra is not installed: tokenizers")
    rj.save_pretrained(random_model("llama"), tmp_path / "one")
    words = {f"w{i}": i for i in range(20)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "w0")).save(str(tmp_path / "one" / "tokenizer.json"))
    (tmp_path / "one" / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    (tmp_path / "one" / "modeling_custom.py").write_text("raise SystemExit", encoding="utf-8")
    rj.save_pretrained(rj.load_pretrained(tmp_path / "one"), tmp_path / "two")
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == [
        *("chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"),
    ]
    assert load_tokenizer(tmp_path / "two").get_vocab() == words


def test_a_hub_id_is_read_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub", reason="the hf extra is not installed: huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    revision = "0123456789012345678901234567890123456789"
    cached = tmp_path / "models--some--model"
    rj.save_pretrained(random_model("llama"), cached / "snapshots" / revision)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(revision, encoding="utf-8")
    loaded: Any = rj.load_pretrained("some/model")
    assert (loaded.source, loaded.decoder.config.vocab) == ("some/model", CONFIGS["llama"]["vocab_size"])
    assert rj.from_huggingface("some/model").specs == loaded.rope.specs
