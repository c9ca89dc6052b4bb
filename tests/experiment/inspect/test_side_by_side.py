"""Two configurations side by side: the mistakes that a careful reader should find."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rope_jax.experiment.inspect import run_inspection

Call = Callable[..., Any]


def test_factor_8_for_32(write: Call, printed: Call, as_object: Call) -> None:
    wrong, right = write("llama-3.2-1b", factor=8.0), write("llama-3.2-1b")
    text = printed(wrong, right)
    assert "\N{NOT EQUAL TO} factor 8 32 rope_scaling.factor" in text
    assert "factor 8 x original length 8192 = 65536, but max_position_embeddings is 131072" in text
    assert "it looks like Llama 3.2 1B, whose published configuration has factor 32 where this file has 8" in text
    assert "17 of 32 pairs differ (15-31), most pairs 18-31, where B turns 0.25 times as fast as A" in text
    assert "\N{NOT EQUAL TO} effective length 65,536 262,144" in text
    (found,) = as_object(wrong, right)["differences"]
    assert found["pairs"] == list(range(15, 32))
    assert found["inv_freq_ratio"][:15] == [1.0] * 15
    np.testing.assert_allclose(found["inv_freq_ratio"][18:], 0.25, rtol=1e-12)
    np.testing.assert_allclose(found["turns_apart"][31], 131_072 * (3.7673e-7 - 9.4183e-8) / (2 * np.pi), rtol=1e-4)


def test_both_spectra_are_whole_in_80_columns(write: Call, printed: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = printed(write("llama-3.2-1b", factor=8.0), write("llama-3.2-1b"))
    assert "\N{NOT EQUAL TO} 18 80,712 322,850 0.1015 0.02537 8 32 interpolated 0.25" in text


def test_wrong_original_length(write: Call, printed: Call) -> None:
    right = write("qwen2.5-yarn", {"max_position_embeddings": 131072})
    wrong = write("qwen2.5-yarn", {"max_position_embeddings": 131072}, original_max_position_embeddings=131072)
    text = printed(right, wrong)
    assert "\N{NOT EQUAL TO} trained_length 32,768 131,072" in text
    assert "published configuration has original_length 32768 where this file has 131072" in text
    assert "23 of 64 pairs differ (24-46), most pair 40, where B turns 2.235 times as fast as A" in text
    assert "factor 4 x original length 131072 = 524288, but max_position_embeddings is still the original" in text


def test_absent_original_length(write: Call, capsys: pytest.CaptureFixture[str], printed: Call) -> None:
    folder = write("qwen2.5-yarn", {"max_position_embeddings": 131072}, original_max_position_embeddings=None)
    assert run_inspection([folder]) == 2
    refused = capsys.readouterr()
    assert refused.out == ""
    assert refused.err.startswith("error: `rope_scaling.original_max_position_embeddings` must be given")
    assert "--no-strict reads on" in refused.err and refused.err.count("\n") == 1
    text = printed(folder, "--no-strict")
    assert (
        "original_max_position_embeddings is absent: max_position_embeddings 131072 is taken, as transformers" in text
    )
    assert "trained on 131072 / 4 = 32768 tokens, and with that original length 23 of 64 pairs (24-46)" in text
    assert "warnings - `rope_scaling.original_max_position_embeddings` must be given" in text


def test_truncation(write: Call, printed: Call, as_object: Call) -> None:
    right, wrong = write("gpt-oss"), write("gpt-oss", truncate=True)
    text = printed(right, wrong)
    assert "\N{NOT EQUAL TO} truncate false true rope_scaling.truncate" in text
    assert "runs from pair 8.09 to 17.40. With true it would run from 8 to 18, and 9 of 32 pairs (9-17)" in text
    assert "9 of 32 pairs differ (9-17), most pair 17, where B turns 1.763 times as fast as A" in text
    assert "it looks like gpt-oss, whose published configuration has truncate false where this file has true" in text
    assert "attention_factor is absent: 0.1 ln 32 + 1 = 1.347 is used." in text
    (found,) = as_object(right, wrong)["differences"]
    np.testing.assert_allclose(found["inv_freq_ratio"][17], 2.27947796e-4 / 1.29318701e-4, rtol=1e-7)
    # Written out, the default of the model type is the other way round than that of YaRN.
    assert "truncate true" in printed(write("gpt-oss", truncate=None))


def test_equal_configurations_differ_nowhere(write: Call, printed: Call) -> None:
    text = printed(write("qwen2.5-yarn"), write("qwen2.5-yarn"))
    assert "\N{NOT EQUAL TO}" not in text
    assert "no pair differs at length 131,072." in text or "no pair differs at length 32,768." in text


def test_widths_that_cannot_be_compared(write: Call, printed: Call, as_object: Call) -> None:
    folders = write("llama-2"), write("gpt-oss")
    assert "not the same in number" in printed(*folders)
    found, *_ = as_object(*folders)["differences"]
    assert found["comparable"] is False
