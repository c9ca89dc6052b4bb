"""Regenerate the pinned numbers of tests/golden from the installed transformers.

Reads tests/golden/cases.json and writes tests/golden/transformers.json: for every case the inverse frequencies and the
attention factor that transformers gives. Builds the tiny models of tests/golden/recipe.py and writes
tests/golden/models.json: their configurations, the names and shapes of their tensors, and logits of their last tokens.
Both hold the versions of the packages that gave them. Needs the `parity` extra.
"""

import argparse
import json
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden"
# Tokens whose logits are kept, from the end, and their digits.
KEPT, DIGITS = 3, 5


def transformers_schedule(case: dict[str, Any]) -> dict[str, Any]:
    """`inv_freq` as transformers' float32 values and `attention_scale` of one case."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters = dict(case["rope_parameters"])
    config = LlamaConfig(
        hidden_size=4 * case["head_dim"],
        num_attention_heads=4,
        head_dim=case["head_dim"],
        max_position_embeddings=case["max_position_embeddings"],
        rope_parameters=parameters,
    )
    if parameters["rope_type"] == "default":  # not in the dictionary: every model class has its own
        inv_freq, scale = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    else:
        inv_freq, scale = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu", seq_len=case["length"])
    return {"inv_freq": inv_freq.tolist(), "attention_scale": float(scale)}


def transformers_model(name: str, kind: str) -> Any:
    """A tiny model of a family under a rope type, with the recipe's weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from tests.golden import recipe

    config = AutoConfig.for_model(recipe.family(name), **recipe.configuration(name, kind))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for tensor, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(recipe.tensor(tensor, tuple(parameter.shape))))
    return model


def last_logits(model: Any, positions: list[int]) -> list[list[float]]:
    """Logits of the last tokens of the recipe's first row at the given positions."""
    import torch

    from tests.golden import recipe

    token_ids = torch.tensor(recipe.TOKEN_IDS[:1])
    # The mask of ones keeps transformers from taking gaps between positions for ends of documents.
    inputs = {"position_ids": torch.tensor([positions]), "attention_mask": torch.ones_like(token_ids)}
    with torch.no_grad():
        logits = model(token_ids, **inputs).logits[0, -KEPT:]
    return [[round(value, DIGITS) for value in row] for row in logits.tolist()]


def golden_models() -> dict[str, Any]:
    """Configuration, tensors and logits of every tiny model; a rope type's configuration as its difference."""
    from tests.golden import recipe

    found: dict[str, Any] = {}
    for name in recipe.CONFIGS:
        entry: dict[str, Any] = {}
        for kind in recipe.kinds(name):
            model = transformers_model(name, kind)
            config = json.loads(model.config.to_json_string(use_diff=False))
            entry.setdefault("config", config)
            tensors = {tensor: list(value.shape) for tensor, value in model.named_parameters()}
            assert entry.setdefault("tensors", tensors) == tensors
            # A model for every reading: the length-dependent rotations of transformers remember the last one.
            logits = {
                row: last_logits(transformers_model(name, kind), positions)
                for row, positions in recipe.position_rows(name).items()
                if row != "start"
            }
            changed = {key: value for key, value in config.items() if entry["config"].get(key) != value}
            entry.setdefault("kinds", {})[kind] = {"config": changed, "logits": logits}
        found[name] = entry
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, default=GOLDEN / "cases.json", help="what to ask transformers for")
    parser.add_argument("--output", type=Path, default=GOLDEN / "transformers.json", help="the file to write")
    parser.add_argument("--models", type=Path, default=GOLDEN / "models.json", help="the file of models to write")
    arguments = parser.parse_args()

    try:
        versions = {name: version(name) for name in ("transformers", "torch", "numpy")}
    except PackageNotFoundError as missing:
        sys.exit(f"`{missing.name}` must be installed to make goldens; it is not. Install the `parity` extra.")

    cases = json.loads(arguments.cases.read_text(encoding="utf-8"))
    schedules = {case["id"]: transformers_schedule(case) for case in cases}
    write(arguments.output, versions, "schedules", schedules)
    # The recipe stands beside the tests, which are no installed package.
    sys.path.insert(0, str(ROOT))
    write(arguments.models, versions, "models", golden_models())


def write(path: Path, versions: dict[str, str], title: str, entries: dict[str, Any]) -> None:
    """One entry a line, so that a change shows as what it is."""
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items())
    text = f'{{"versions": {json.dumps(versions)},\n "{title}": {{\n{lines}\n}}}}\n'
    path.write_text(text, encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
