"""One configuration: every number with its origin, every pair, and what looks odd."""

from collections.abc import Callable
from typing import Any

import numpy as np

Call = Callable[..., Any]


def test_one_configuration_with_the_origin_of_every_number(write: Call, printed: Call) -> None:
    text = printed(write("llama-3.2-1b"))
    assert "factor 32 rope_scaling.factor" in text
    assert "trained_length 8,192 rope_scaling.original_max_position_embeddings" in text
    assert "target_length 262,144 factor x trained_length" in text
    assert "layout half default of llama" in text
    assert "pairs: 15 kept (0-14), 3 blended (15-17), 14 interpolated (18-31)" in text
    assert "critical dimension: 36 of 64 channels" in text
    assert "effective length of these frequencies: 262,144 tokens" in text
    assert "16 14,627 4,443 0.5601 3.292 blended" in text
    assert "whose published configuration has the same factor 32" in text


def test_all_pairs_only_when_asked(write: Call, printed: Call) -> None:
    folder = write("llama-3.2-1b")
    assert " 7 85.2" not in printed(folder)
    assert "\N{VERTICAL ELLIPSIS}" not in printed(folder, "--all")


def test_groups_of_layers(write: Call, printed: Call) -> None:
    text = printed(write("gemma-3"))
    assert "sliding_attention layers 0-4 (5)" in text and "full_attention layers 5 (1)" in text
    assert "Identity rope_scaling.rope_type 'linear' spares this group" in text
    assert "pairs: 128 kept (0-127)" in text and "pairs: 128 interpolated (0-127)" in text
    assert "If that is the extended length, the model was trained on 131072 / 8 = 16384 tokens" in text
    text = printed(write("smollm3", {"max_position_embeddings": 65536}))
    assert "nope layers 3 (1)" in text and "none: these layers do not turn" in text


def test_lengths_of_methods_that_follow_them(write: Call, printed: Call, as_object: Call) -> None:
    folder = write("internlm2")
    text = printed(folder)
    assert "at length 32,768" in text and "at length 65,536" in text
    (group,) = as_object(folder, "--length", "32768", "98304")["configs"][0]["groups"].values()
    short, long = group["spectra"]
    assert (short["length"], long["length"]) == (32768, 98304)
    assert set(short["pairs"]["verdict"]) == {"kept"}
    np.testing.assert_allclose(long["pairs"]["stretch"][63], 5.0, rtol=1e-12)  # alpha = 2 x 3 - 1
    text = printed(write("phi-4-mini"))
    assert "short list holds, beyond it the long one" in text
    assert "sqrt(1 + ln 32 / ln 4096) = 1.19 is used" in text


def test_scales_and_partial_rotation(write: Call, printed: Call, as_object: Call) -> None:
    text = printed(write("deepseek-v2"))
    assert "softmax_scale 1.58963 rope_scaling.mscale_all_dim" in text
    assert "mscale 0.707 and mscale_all_dim 0.707 give the quotient 1." in text
    assert "64 of the 256 channels of a head turn" in printed(write("pythia"))
    given = write("qwen2.5-yarn", attention_factor=1.0)
    assert "rope_scaling.attention_factor makes the attention scale 1; 0.1 ln 4 + 1 would be 1.139" in printed(given)
    found = as_object(write("qwen2.5-yarn"), given)
    np.testing.assert_allclose(found["differences"][0]["logit_ratio"], 1 / 1.138629436**2, rtol=1e-6)


def test_another_trained_length(write: Call, printed: Call) -> None:
    text = printed(write("gemma-3"), "--trained-length", "16384")
    assert "trained_length 16,384 --trained-length" in text
    assert "effective length of these frequencies: 131,072 tokens" in text


def test_phases_that_training_never_showed(write: Call, as_object: Call) -> None:
    group = as_object(write("llama-2"), "--length", "8192")["configs"][0]["groups"]["all"]
    (spectrum,) = group["spectra"]
    assert spectrum["effective_length"] == 4096
    assert spectrum["never_turning"] == list(range(46, 64))
    wave = 2 * np.pi * 1e4 ** (np.arange(64) / 64)
    expected = np.maximum(np.minimum(8192 / wave, 1) - np.minimum(4096 / wave, 1), 0)
    np.testing.assert_allclose(spectrum["pairs"]["unseen"], expected, atol=1e-12)
    assert any("18 of 64 pairs (46-63) reach phases that 4096 tokens of training" in text for text in group["findings"])
