"""A checkpoint for another runtime: as a file where there is one, else as the exact command or fields.

    python scripts/export.py DIR --for transformers --method "YaRN(factor=4)" --output DIR4
    python scripts/export.py DIR --for vllm --method "YaRN()" --length 32768
    python scripts/export.py DIR --for gguf --output MODEL.gguf --dtype float16

What a runtime is known to drop is refused, naming the loss and the cure. Results go to stdout, remarks to stderr.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from rope_jax.experiment.command import USER_FAULT
from rope_jax.experiment.methods import parse_method
from rope_jax.huggingface import from_huggingface, weights
from rope_jax.huggingface.gguf_rope import rope_metadata
from rope_jax.huggingface.runtimes import (
    compose,
    fix_length,
    llama_cpp_command,
    spelled_for,
    target_length,
    tokenizer_limit,
    trained_length,
    transformers_fields,
    vllm_command,
)
from rope_jax.huggingface.source import TEXT, read_config, read_json
from rope_jax.huggingface.weights.gguf_write import save_gguf
from rope_jax.huggingface.weights.settings import LARGEST
from rope_jax.huggingface.weights.whole import placing
from rope_jax.scaling import FrequencyTransform
from rope_jax.spec import ModelRope

RUNTIMES = {"transformers": "transformers", "vllm": "vLLM", "gguf": "llama.cpp"}
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Source:
    """What a checkpoint is before any weight is read."""

    name: str
    config: Mapping[str, Any]
    rope: ModelRope
    # Whether there is more than a configuration.
    complete: bool
    # The key under which a composite configuration holds the language model's.
    wrapper: str | None = None
    gguf: bool = False


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Export a checkpoint, with its own rotary settings or with a method on top, to another runtime.",
        epilog="Without --output, and for vLLM, it prints what to do: JSON for config.json, a command for the shell.",
        allow_abbrev=False,
    )
    parser.add_argument("source", metavar="SOURCE", help="a checkpoint folder, a config.json, a .gguf file or a hub id")
    parser.add_argument("--for", dest="runtime", required=True, choices=RUNTIMES, help="the runtime")
    parser.add_argument(
        "--method",
        metavar="EXPRESSION",
        help="applied after the checkpoint's own method, such as \"YaRN(factor=4)\", and read as in a sweep's "
        "configuration: a factor left out is --length / trained length, an original_length the trained length",
    )
    parser.add_argument("--length", type=int, metavar="N", help="tokens of the longest sequence")
    parser.add_argument("--output", type=Path, metavar="PATH", help="a new folder (transformers) or a .gguf file")
    parser.add_argument(
        "--version", type=int, choices=(5, 4), default=5, help="spelling of the configuration; default 5"
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, help="of the weights; by default float32, and for vLLM its own choice"
    )
    parser.add_argument(
        "--no-strict",
        dest="strict",
        action="store_false",
        help="read a doubtful configuration as it likely is meant, and keep the frequencies of --length where the "
        "runtime cannot follow the length; both are told as remarks",
    )
    return parser.parse_args(words)


def open_source(name: str, strict: bool) -> Source:
    """The configuration and rotary settings; a GGUF's from its metadata."""
    path = Path(name)
    if path.suffix == ".gguf":
        known = weights.outline(name, strict=strict)
        return Source(name, known.config, known.rope, complete=True, gguf=True)
    config = read_config(name)
    rope = from_huggingface(config, strict=strict)
    complete = any(path.glob("*.safetensors")) if path.is_dir() else not path.exists()
    return Source(name, config, rope, complete, _wrapper(path))


def _wrapper(path: Path) -> str | None:
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        return None
    raw = read_json(file)
    return next((key for key in TEXT if isinstance(raw.get(key), dict)), None)


def with_method(source: Source, text: str | None, length: int | None) -> tuple[ModelRope, float | None]:
    """The checkpoint's settings with the method on top, and what it stretches the trained length by."""
    if length is not None and not 1 <= length <= LARGEST:
        raise ValueError(
            f"`--length` must be at least 1 token and at most {LARGEST}; got {str(length)[:40]}. Correct it."
        )
    if text is None:
        return source.rope, None
    method, trained = parse_method(text), trained_length(source.config)
    if not method.frequencies_only:
        raise ValueError(f"`--method` must edit frequencies alone; got {text!r}. Runtimes take no score maps by name.")
    if trained is None:
        raise ValueError("`max_position_embeddings` must be given, the length it was trained on; got none. Add it.")
    if method.takes_factor and length is None:
        raise ValueError(
            f"`--length` must be given where the method leaves its factor out; got {text!r} alone. Write factor=..., "
            f"or give the length it is for (the trained one is {trained})."
        )
    factor = (length or trained) / trained if method.takes_factor else method.written_factor
    transform = cast(FrequencyTransform, method.transform(factor=factor or 1.0, original_length=trained))
    remark(f"trained length {trained}; on top of the checkpoint's own: {transform!r}")
    return compose(source.rope, transform), factor


def remark(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr)


def for_transformers(source: Source, rope: ModelRope, chosen: argparse.Namespace) -> str:
    fields, remarks = transformers_fields(rope, source.config, version=chosen.version)
    remark(*remarks)
    if chosen.output is None:
        return json.dumps(fields, indent=2)
    dtype = chosen.dtype or "float32"
    model = weights.load_pretrained(source.name, param_dtype=dtype, strict=chosen.strict)
    model = replace(model, rope=spelled_for(rope, str(source.config.get("model_type"))))
    weights.save_pretrained(model, chosen.output, dtype=dtype, version=chosen.version)
    return str(chosen.output)


def for_vllm(source: Source, rope: ModelRope, chosen: argparse.Namespace, factor: float | None) -> str:
    if source.gguf:
        raise ValueError(
            f"`source` must be a folder or a hub id for vLLM; got {source.name}. Export it --for transformers first."
        )
    path = Path(source.name)
    fixed, remarks = fix_length(rope, chosen.length, runtime=RUNTIMES["vllm"], strict=chosen.strict)
    length = target_length(rope, source.config, chosen.length, factor)
    command = vllm_command(
        fixed,
        source.config,
        model=str(path.parent) if path.is_file() else source.name,
        length=length,
        trained_length=trained_length(source.config),
        wrapper=source.wrapper,
        dtype=chosen.dtype,
    )
    remark(*remarks, *command.remarks, *tokenizer_limit(path, length))
    return str(command)


def for_gguf(source: Source, rope: ModelRope, chosen: argparse.Namespace, factor: float | None) -> str:
    name, length = RUNTIMES["gguf"], chosen.length
    fixed, remarks = fix_length(rope, length, runtime=name, strict=chosen.strict)
    remark(*remarks)
    if chosen.output is not None:
        rope_metadata(fixed)  # only to refuse before weights are read
        dtype: Literal["float32", "bfloat16", "float16"] = chosen.dtype or "float32"
        model = weights.load_pretrained(source.name, param_dtype=dtype, strict=chosen.strict)
        save_gguf(replace(model, rope=fixed), chosen.output, dtype=dtype)
        return str(chosen.output)
    before = source.rope
    if before.needs_length:
        before, _ = fix_length(before, length, runtime=name, strict=False)
    command, metadata = llama_cpp_command(
        fixed,
        before,
        source.config,
        model=source.name if source.gguf else "MODEL.gguf",
        length=target_length(rope, source.config, length, factor),
    )
    remark(*command.remarks)
    # Comments: the whole is a script for the shell.
    lines = [f"# {key} = {json.dumps(value)}" for key, value in metadata.items()]
    return "\n".join([*lines, str(command)])


def check_output(source: Source, chosen: argparse.Namespace) -> None:
    """What makes --output impossible, before anything is read or computed."""
    output, runtime = chosen.output, chosen.runtime
    if chosen.dtype and output is None and runtime != "vllm":
        raise ValueError(f"`--dtype` must come with --output, whose weights it is of; got {chosen.dtype} alone.")
    if output is None:
        return
    if runtime == "vllm":
        raise ValueError(
            f"`--output` must be left out for vLLM, which reads the checkpoint as it is; got {output}. Export it --for "
            "transformers to write one."
        )
    if not source.complete:
        raise ValueError(
            f"`source` must hold weights to write {output}; got {source.name}, a configuration. Leave --output out to "
            "print the fields."
        )
    if runtime == "gguf" and output.suffix != ".gguf":
        raise ValueError(f"`--output` must be a .gguf file for gguf; got {output}.")
    with placing("--output", output):
        itself = runtime == "gguf" and source.gguf and output.exists() and output.samefile(source.name)
    if itself:
        raise ValueError(f"`--output` must not be the file it is made from; got {output}. Choose another.")
    with placing("--output", output):
        taken = runtime == "transformers" and output.exists() and (not output.is_dir() or any(output.iterdir()))
    if taken:
        raise ValueError(f"`--output` must be a new or an empty folder; got {output}. Choose another, or remove it.")


def export(chosen: argparse.Namespace) -> str:
    """What was made: a path, a command or JSON."""
    source = open_source(chosen.source, chosen.strict)
    check_output(source, chosen)
    remark(*source.rope.warnings)
    rope, factor = with_method(source, chosen.method, chosen.length)
    if chosen.runtime == "transformers":
        return for_transformers(source, rope, chosen)
    made = for_vllm if chosen.runtime == "vllm" else for_gguf
    return made(source, rope, chosen, factor)


def main(words: list[str] | None = None) -> int:
    chosen = parse(words)
    try:
        print(export(chosen))
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return USER_FAULT
    return 0


if __name__ == "__main__":
    sys.exit(main())
