"""Made-up rows of a sweep, as plausible as a tiny model's: text with a fine-tune, and passkeys."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

TRAINED, MULTIPLES = 64, (1, 2, 4, 8)
# Tail losses at 1x, 2x, 4x, 8x; label, text.
BASE = {
    "Identity": ("Identity()", (1.247, 2.108, 2.497, 2.857)),
    "PositionInterpolation": ("PositionInterpolation()", (1.247, 1.840, 2.455, 3.243)),
    "NTKAware": ("NTKAware()", (1.247, 1.577, 1.972, 2.844)),
    "Llama3": ("Llama3()", (1.247, 1.367, 1.503, 1.791)),
    "NTKByParts(beta=4)": ("NTKByParts(alpha=1, beta=4)", (1.247, 1.351, 1.521, 1.858)),
    "YaRN": ("YaRN(beta_fast=4.0)", (1.247, 1.236, 1.265, 1.688)),
}
TUNED = {
    "Identity": ("Identity()", (1.251, 1.249, 1.262, 1.430)),
    "YaRN": ("YaRN(beta_fast=4.0)", (1.250, 1.219, 1.205, 1.231)),
}
LAST = {"base": "last L tokens, plain", "tuned": "last L tokens, the better of plain and tuned"}
FOUND = {
    "Identity": ("Identity()", (0.995, 0.98, 0.234, 0.039)),
    "PositionInterpolation": ("PositionInterpolation()", (0.995, 0.849, 0.604, 0.474)),
    "YaRN": ("YaRN(beta_fast=4.0)", (0.995, 1.0, 0.99, 0.995)),
}


def config(task: str = "text", seeds: tuple[int, ...] = (0,), tuned: bool = True) -> dict[str, Any]:
    methods = FOUND if task == "passkey" else BASE
    return {
        "name": f"synthetic-{task}",
        "output": "runs",
        "seeds": list(seeds),
        "data": {"task": task, "source": "stdlib", "key_length": 3, "key_symbols": 32, "filler_symbols": 16},
        "model": {"embed": 128, "layers": 4, "heads": 4, "theta": 1e4, "windows": {}, "no_rope": [], "softcap": None},
        "train": {"length": TRAINED, "batch": 32, "steps": 600, "learning_rate": 3e-3},
        "sweep": {
            "methods": [text for text, _ in methods.values()],
            "factors": ["match"],
            "multiples": list(MULTIPLES),
        },
        "evaluate": {"windows": 48, "truncation_stride": 8, "depths": 8, "trials": 16},
        "finetune": {
            "steps": 60 if tuned and task == "text" else 0,
            "multiple": 4,
            "methods": [text for text, _ in TUNED.values()] if tuned and task == "text" else [],
        },
    }


def row(settings: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """One row, with the stamp that every row bears."""
    whole = {
        "config_hash": hashlib.sha256(json.dumps(settings["model"]).encode()).hexdigest(),
        "config": settings,
        "task": settings["data"]["task"],
        "trained_length": TRAINED,
        "device": "cpu: Imagined Processor, 2 cores",
        "versions": {"jax": "0.10.2", "python": "3.11.7"},
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "phase": "base",
        "seed": 0,
        "factor": 1.0,
        "factor_rule": "match",
        "count": 768,
        "seconds": 1.5,
        **fields,
    }
    identity = {
        k: v for k, v in whole.items() if k in ("phase", "seed", "method", "factor", "length", "metric", "tuned_method")
    }
    return {"key": hashlib.sha256(json.dumps(identity).encode()).hexdigest(), **whole}


def text_rows(seeds: tuple[int, ...] = (0,), tuned: bool = True) -> list[dict[str, Any]]:
    settings = config("text", seeds, tuned)
    rows = []
    for seed in seeds:
        random = np.random.default_rng(seed)
        rows.append(_training(settings, seed, 1_228_800))
        rows += _sweep(settings, random, BASE, {"phase": "base", "seed": seed}, truncated=1.262)
        for label, (method, losses) in TUNED.items() if tuned else ():
            weights = {
                "phase": "tuned",
                "seed": seed,
                "tuned_method": method,
                "tuned_factor": 4.0 if label != "Identity" else 1.0,
            }
            rows.append(
                _training(settings, seed, 1_351_680, weights | {"method": method, "label": label, "length": 256})
            )
            rows += _sweep(settings, random, {label: (method, losses)}, weights, truncated=1.258)
    return rows


def loss_row(*, gain: float = 0.0, stderr: float = 0.01, windows: int = 48, **fields: Any) -> dict[str, Any]:
    """One row of a loss with a context gain over so many windows."""
    one = next(one for one in text_rows() if one["label"] == "YaRN" and one["metric"] == "loss")
    count = windows * TRAINED // 4
    return one | {"context_gain": gain, "context_gain_stderr": stderr, "count": count} | fields


def passkey_rows(seeds: tuple[int, ...] = (0,)) -> list[dict[str, Any]]:
    settings = config("passkey", seeds)
    rows = []
    for seed in seeds:
        random = np.random.default_rng(seed)
        rows.append(_training(settings, seed, 2_867_200))
        for label, (method, shares) in FOUND.items():
            for multiple, share in zip(MULTIPLES, shares, strict=True):
                depths = [
                    [depth, float(np.clip(share + random.normal(0, 0.04), 0, 1))] for depth in np.linspace(0, 1, 8)
                ]
                extras = {"by_depth": depths, "whole_answers": share**2, "inv_freq": _inv_freq(label, multiple)}
                length, factor = multiple * TRAINED, float(multiple)
                fields = {
                    "method": method,
                    "label": label,
                    "length": length,
                    "factor": factor,
                    "count": 384,
                    "value": share,
                }
                rows.append(row(settings, metric="passkey_accuracy", seed=seed, **fields, **extras))
    return rows


def write_rows(folder: Path, rows: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "results.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    return path


def _training(settings: dict[str, Any], seed: int, tokens: int, fields: dict[str, Any] | None = None) -> dict[str, Any]:
    named = {"method": "Identity()", "label": "Identity", "length": TRAINED, "factor_rule": "fixed"} | (fields or {})
    numbers = {"value": 1.41, "tokens": tokens, "steps": 600, "parameters": 839_808, "seconds": 72.0}
    return row(settings, metric="training", **numbers, **({"seed": seed} | named))


def _sweep(settings, random, methods, weights, truncated) -> list[dict[str, Any]]:
    bins = 4 * max(MULTIPLES)
    start = [2.9 - 0.55 * math.log2(1 + min(i, 3)) for i in range(bins)]
    baseline = [max(loss, truncated + 0.25) + 0.02 * random.normal() for loss in start]
    fields = {"method": "truncated", "label": LAST[weights["phase"]], "length": TRAINED * 8, "factor_rule": "fixed"}
    rows = [
        row(settings, metric="truncated_loss", value=truncated, by_position=baseline, seconds=6.0, **fields, **weights)
    ]
    for label, (method, losses) in methods.items():
        for multiple, loss in zip(MULTIPLES, losses, strict=True):
            value = loss + (0.004 * float(random.normal()) if multiple > 1 else 0.0)
            known = np.interp(np.log2(np.arange(1, bins + 1)), [2, 3, 4, 5], losses)
            curve = [b if i < 4 else float(v) + 0.25 for i, (b, v) in enumerate(zip(baseline, known, strict=True))]
            gain = truncated - value if multiple > 1 else 0.0
            numbers = {
                "value": value,
                "mean": value + 0.2,
                "by_position": curve[: 4 * multiple],
                "seconds": 0.4 * multiple,
            }
            paired = {
                "truncated": value + gain,
                "context_gain": gain,
                "context_gain_stderr": 0.012 if multiple > 1 else 0.0,
            }
            spectrum = {"inv_freq": _inv_freq(label, multiple), "attention_scale": 1.0}
            cell = {"method": method, "label": label, "length": multiple * TRAINED, "factor": float(multiple)}
            rows.append(row(settings, metric="loss", **cell, **weights, **numbers, **paired, **spectrum))
    return rows


def _inv_freq(label: str, factor: float) -> list[float]:
    plain = 1e4 ** (-np.arange(16) / 16)
    ramp = np.clip((plain * TRAINED / (2 * np.pi) - 1) / 3, 0, 1)
    rule = {
        "Identity": plain,
        "PositionInterpolation": plain / factor,
        "NTKAware": (1e4 * factor**1.07) ** (-np.arange(16) / 16),
    }
    return list(map(float, rule.get(label, plain * ramp + plain / factor * (1 - ramp))))
