"""Rope settings of published configurations, to lay one at hand beside: a comparison, not a rule."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rope_jax.experiment.inspect.reading import Group, Inspection


@dataclass(frozen=True)
class Published:
    """A published model: how to know its configuration, and the settings it has."""

    name: str
    model_types: tuple[str, ...]
    method: str
    # Keys of the file that all have one of these values; an absent key does not speak against it.
    marks: Mapping[str, tuple[int, ...]]
    settings: Mapping[str, Any]


def _row(name: str, types: str, method: str, marks: dict[str, tuple[int, ...]], **settings: Any) -> Published:
    return Published(name, tuple(types.split()), method, MappingProxyType(marks), MappingProxyType(settings))


_LLAMA = MappingProxyType({"original_length": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0})
PUBLISHED: tuple[Published, ...] = (
    _row("Llama 3.2 1B", "llama", "Llama3", {"hidden_size": (2048,), "head_dim": (64,)}, factor=32.0, **_LLAMA),
    _row("Llama 3.2 3B", "llama", "Llama3", {"hidden_size": (3072,), "head_dim": (128,)}, factor=32.0, **_LLAMA),
    _row(
        "Llama 3.1 and 3.3 (8B, 70B, 405B)", "llama", "Llama3",
        {"hidden_size": (4096, 8192, 16384), "head_dim": (128,)}, factor=8.0, **_LLAMA,
    ),
    _row("gpt-oss", "gpt_oss", "YaRN", {}, factor=32.0, original_length=4096, truncate=False),
    _row("Qwen2.5 and Qwen3 with YaRN", "qwen2 qwen3", "YaRN", {}, original_length=32768, truncate=True),
    _row("DeepSeek-V2", "deepseek_v2", "YaRN", {}, factor=40.0, original_length=4096, mscale=0.707, truncate=True),
    _row("DeepSeek-V3", "deepseek_v3", "YaRN", {}, factor=40.0, original_length=4096, mscale=1.0, truncate=True),
)  # fmt: skip


def published_like(inspection: Inspection, group: Group) -> tuple[Published, dict[str, Any]] | None:
    """The one published configuration that this one looks like, and its settings that differ here."""
    if group.spec is None:
        return None
    known = {"head_dim": group.spec.head_dim, "hidden_size": inspection.raw.get("hidden_size")}
    rows = [
        row
        for row in PUBLISHED
        if inspection.raw.get("model_type") in row.model_types
        and group.part(row.method) is not None
        and all(known[key] is None or known[key] in values for key, values in row.marks.items())
    ]
    if len(rows) != 1:
        return None
    part = group.part(rows[0].method)
    return rows[0], {name: value for name, value in rows[0].settings.items() if getattr(part, name) != value}
