"""Regenerate the pinned frequencies of tests/golden from the installed transformers.

Reads tests/golden/cases.json and writes tests/golden/transformers.json: for every case the inverse frequencies and the
attention factor that transformers gives, with the versions of the packages that gave them. Needs the `parity` extra.
"""

import argparse
import json
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).resolve().parents[1] / "tests" / "golden"


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, default=GOLDEN / "cases.json", help="what to ask transformers for")
    parser.add_argument("--output", type=Path, default=GOLDEN / "transformers.json", help="the file to write")
    arguments = parser.parse_args()

    try:
        versions = {name: version(name) for name in ("transformers", "torch", "numpy")}
    except PackageNotFoundError as missing:
        sys.exit(f"`{missing.name}` must be installed to make goldens; it is not. Install the `parity` extra.")

    cases = json.loads(arguments.cases.read_text(encoding="utf-8"))
    schedules = {case["id"]: transformers_schedule(case) for case in cases}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(schedule)}" for name, schedule in schedules.items())
    text = f'{{"versions": {json.dumps(versions)},\n "schedules": {{\n{lines}\n}}}}\n'
    arguments.output.write_text(text, encoding="utf-8")
    print(arguments.output)


if __name__ == "__main__":
    main()
