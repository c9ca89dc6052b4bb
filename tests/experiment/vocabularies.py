"""Tokenizers with a token a character, a checkpoint of a few thousand weights with one, and a sweep over it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from rope_jax import from_huggingface, nn
from rope_jax.experiment.config import (
    DataConfig,
    EvaluateConfig,
    ExperimentConfig,
    ModelConfig,
    SweepConfig,
    TrainConfig,
)
from rope_jax.huggingface import weights
from rope_jax.huggingface.weights.shape import decoder_config
from tests.experiment.tiny import write_corpus

BOS, EOS, FIRST = 1, 2, 3
VOCAB = 128 + FIRST
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}


@dataclass
class Encoded:
    ids: list[int]


class Characters:
    """A token a character. `asked` is added where special tokens are asked for, `always` whatever is asked for."""

    def __init__(self, asked=(), always=(), ends=(), pairs=()):
        self.asked, self.always, self.ends = list(asked), list(always), list(ends)
        self.pairs = tuple(pairs)
        """Two characters that are one token, from `VOCAB` on."""

    def encode(self, text, add_special_tokens=True):
        ids, ahead = [], list(text)
        while ahead:
            pair = "".join(ahead[:2])
            if pair in self.pairs:
                ids.append(VOCAB + self.pairs.index(pair))
                del ahead[:2]
            else:
                ids.append(FIRST + ord(ahead.pop(0)))
        if add_special_tokens:
            ids = self.asked + ids + self.ends
        return Encoded(self.always + ids)

    def decode(self, ids, skip_special_tokens=True):
        special = {} if skip_special_tokens else {0: "<unk>", BOS: "<s>", EOS: "</s>"}
        return "".join(
            special.get(one, "") if one < FIRST else self.pairs[one - VOCAB] if one >= VOCAB else chr(one - FIRST)
            for one in ids
        )


def write_checkpoint(folder: Path, *, seed: int = 0, bos: bool = True, **changes: Any) -> str:
    """A folder in Hugging Face form: a Llama of two layers with random weights, and a tokenizer a character a token."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    known = {"<unk>": 0, "<s>": BOS, "</s>": EOS} | {chr(code): FIRST + code for code in range(128)}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    config = CONFIG | {"vocab_size": VOCAB} | changes
    rope = from_huggingface(config)
    decoder = nn.Decoder(decoder_config(config, rope), rngs=nnx.Rngs(seed))
    weights.save_pretrained(weights.Pretrained(decoder, rope, tokenizer, config, ""), folder)
    return str(folder)


def parameters(model: weights.Pretrained) -> np.ndarray:
    """All weights of a model in one row."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(nnx.split(model.decoder)[1])])


def config_for(folder: Path, **changes: Any) -> ExperimentConfig:
    """Zero-shot: two methods at half, once and twice the trained length of 16."""
    if not (folder / "model").is_dir():
        write_checkpoint(folder / "model")
        write_corpus(folder / "corpus")
    config = ExperimentConfig(
        name="sweep",
        output=str(folder / "runs"),
        data=DataConfig(source=f"{folder}/corpus/*.txt", held_out_tokens=3000),
        model=ModelConfig(checkpoint=str(folder / "model")),
        train=TrainConfig(length=16, batch=4, steps=0, checkpoint_every=2, log_every=2),
        sweep=SweepConfig(methods=("Identity()", "YaRN()"), multiples=(0.5, 1, 2)),
        evaluate=EvaluateConfig(windows=4, batch=2, truncation_stride=4),
    )
    return replace(config, **changes)
