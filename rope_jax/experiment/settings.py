"""The tree of settings of an experiment, with their defaults."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class DataConfig:
    """What is learned: text (bytes; for a checkpoint the tokens of its own tokenizer), or finding a key in filler."""

    task: Literal["text", "passkey"] = "text"
    source: str = "stdlib"
    """"stdlib" (the running Python's own modules), a file, or a glob."""
    held_out_tokens: int = 500_000
    """Text kept from training, in whole files; at most half of the text. Without any training all text is held out."""
    key_length: int = 3
    """Tokens of the key that is to be found; for a checkpoint, decimal digits."""
    key_symbols: int = 32
    """Size of the alphabet of keys; guessing finds one in that many. For a checkpoint, keys are numbers in words."""
    filler_symbols: int = 16
    """Size of the filler's alphabet, disjoint from that of keys. For a checkpoint, filler is sentences."""


@dataclass(frozen=True)
class ModelConfig:
    """The decoder. `pattern` names a group for each layer by one letter and repeats over the layers."""

    checkpoint: str = ""
    """A folder in Hugging Face form, a .gguf file or a hub id to start from; then only `remat` and `dtype` apply."""
    embed: int = 128
    """Width of the residual stream."""
    layers: int = 4
    heads: int = 4
    kv_heads: int = 4
    """Key and value heads, a divisor of `heads`."""
    head_dim: int = 32
    mlp: int = 352
    """Hidden width of the MLP."""
    rotary_fraction: float = 1.0
    """Share of every head that turns; the rest passes through."""
    theta: float = 10_000.0
    """Base of the frequencies."""
    thetas: dict[str, float] = field(default_factory=dict)
    """Group letter -> base of its own, such as a small one for sliding layers."""
    layout: Literal["half", "interleaved"] = "half"
    positional: Literal["rope", "none", "learned", "sinusoidal", "alibi"] = "rope"
    """How positions enter; scaling methods are for "rope"."""
    tied: bool = True
    """Whether the unembedding is the embedding."""
    qk_norm: bool = False
    """RMS-normalise queries and keys before they turn."""
    bias: bool = False
    pattern: str = "G"
    windows: dict[str, int] = field(default_factory=dict)
    """Group letter -> sliding window in tokens."""
    no_rope: tuple[str, ...] = ()
    """Group letters whose layers are not rotated."""
    softcap: float | None = None
    """Largest absolute attention logit."""
    sinks: bool = False
    """A learned logit per head that takes part in the softmax and carries no value."""
    remat: bool = False
    """Recompute layers in the backward pass: less memory, more time."""
    dtype: Literal["float32", "bfloat16"] = "float32"

    @property
    def rotary_dim(self) -> int:
        """Width of a head that turns: `rotary_fraction * head_dim`."""
        return round(self.rotary_fraction * self.head_dim)


@dataclass(frozen=True)
class TrainConfig:
    """Training at the original length: AdamW, linear warmup, cosine decay to `final_fraction`."""

    length: int = 64
    """The trained length, in tokens; for a checkpoint, the length that it was trained at."""
    batch: int = 32
    """Rows in a step."""
    steps: int = 600
    """0 with a checkpoint, and only then."""
    learning_rate: float = 3e-3
    final_fraction: float = 0.05
    """Learning rate at the end, as a share of its peak."""
    warmup: int = 60
    """Steps until the peak learning rate."""
    weight_decay: float = 0.1
    b2: float = 0.95
    """AdamW's decay of squared gradients."""
    clip: float = 1.0
    """Largest global norm of the gradient."""
    checkpoint_every: int = 200
    log_every: int = 20


@dataclass(frozen=True)
class SweepConfig:
    """The cells: every method at every factor and every length (`multiples` of `train.length`)."""

    methods: tuple[str, ...] = ("Identity()",)
    """Expressions such as "chain(YaRN(), LogN()) @ full", which edits the layers without a window."""
    factors: tuple[float | Literal["match"], ...] = ("match",)
    """"match" is the length of the cell divided by the trained length."""
    multiples: tuple[float, ...] = (1, 2, 4, 8)
    """Lengths in trained lengths; quarters are allowed, such as 0.5."""

    def lengths(self, trained_length: int) -> tuple[int, ...]:
        """The lengths in tokens, shortest first."""
        return tuple(round(multiple * trained_length) for multiple in self.multiples)


@dataclass(frozen=True)
class EvaluateConfig:
    """How a cell is measured: `windows` of text, or `depths` x `trials` keys."""

    windows: int = 48
    """Text windows at every length, all ending at the same places."""
    batch: int = 8
    """Rows a call at the longest length; shorter ones get as many tokens."""
    truncation_stride: int = 8
    """Step of the truncation baseline: each target sees the last `train.length` tokens, less up to this many."""
    depths: int = 8
    """Places of the key, from the start to the end of the text."""
    trials: int = 16
    """Keys at every depth."""
    generate: bool = False
    """Whether answers are generated token by token, each after the model's own tokens instead of the true ones."""
    loss_chunk: int = 4096
    """Tokens whose logits are held at once."""


@dataclass(frozen=True)
class FinetuneConfig:
    """Further steps at `multiple` times the trained length, once per method; 0 steps: none."""

    steps: int = 0
    multiple: int = 4
    """Length of the steps, in trained lengths; the batch shrinks by it, so tokens a step stay."""
    learning_rate: float = 3e-4
    warmup: int = 10
    methods: tuple[str, ...] = ()
    export: bool = False
    """Write every tuned model as a Hugging Face folder, into `exports` of the run; for a checkpoint only."""


@dataclass(frozen=True)
class ExperimentConfig:
    """One experiment: what is learned, by which model, and the sweep over methods, factors, lengths and seeds."""

    name: str
    output: str = "runs"
    seeds: tuple[int, ...] = (0,)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    finetune: FinetuneConfig = field(default_factory=FinetuneConfig)

    @property
    def longest(self) -> int:
        """The longest length evaluated, in tokens."""
        return max(self.sweep.lengths(self.train.length))

    @property
    def starts_trained(self) -> bool:
        """Whether the weights come from a checkpoint."""
        return bool(self.model.checkpoint)

    @property
    def trains(self) -> bool:
        """Whether any weights are trained, at the original length or further."""
        return not self.starts_trained or self.finetune.steps > 0
