"""The settings of a training run, with their defaults: the tables of a TOML file for `scripts/train.py`."""

from dataclasses import dataclass, field
from typing import Literal

from rope_jax.experiment.recipe.settings import RecipeConfig
from rope_jax.experiment.settings import ModelConfig
from rope_jax.parallel import MeshShape


@dataclass(frozen=True)
class ComputeConfig:
    """How a step is computed; none of it changes the result by more than rounding."""

    accumulate: int = 1
    """Parts that a batch is taken in, one after the other: less memory, same result."""
    loss_chunk: int = 4096
    """Tokens of a device whose logits are held at once."""
    remat: Literal["none", "layers", "dots"] = "none"
    """What the backward pass recomputes: nothing; every layer; all but the results of matrix products."""
    backend: str = "auto"
    """Of attention: "auto", "reference", "xla", "chunked", "splash" (TPU) or "cudnn" (NVIDIA)."""
    context_form: Literal["all_gather", "ring"] = "all_gather"
    """How shards of a row meet each other's keys, with mesh.context above 1."""
    context_order: Literal["contiguous", "zigzag"] = "contiguous"
    """How tokens are dealt out to the shards of a row; zigzag gives all of them the same work."""


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW behind a clip of the global norm; linear warmup, then a cosine down to `final_fraction` of the peak."""

    learning_rate: float = 3e-3
    final_fraction: float = 0.05
    """Learning rate at the end, as a share of its peak."""
    warmup: int = 60
    """Steps until the peak learning rate."""
    weight_decay: float = 0.1
    b1: float = 0.9
    b2: float = 0.95
    """Decay of squared gradients."""
    epsilon: float = 1e-8
    clip: float = 1.0
    """Largest global norm of the gradient."""


@dataclass(frozen=True)
class StageConfig:
    """One stretch of a run: a length, what turns queries and keys there, and how training goes on from before."""

    name: str
    length: int
    """Tokens of a row; a batch has tokens_per_batch / length rows."""
    steps: int
    """0: only evaluates, as for a method at inference."""
    transform: str = "Identity()"
    """A scaling method on top of the base, as sweeps write them: "YaRN()", "chain(NTKAware(), Resonance())"."""
    factor: float | None = None
    """Of the method; left out: length (or pose_target) / original_length. On top of a checkpoint's own method."""
    original_length: int | None = None
    """Of the method; left out: the longest length trained before this stage, that of a checkpoint among them.
    In a first stage without a checkpoint, its own."""
    theta: float | None = None
    """Base of the frequencies; left out: that of the stage before (in the first stage, the model's).
    Not where layer groups have bases of their own."""
    data: RecipeConfig | None = None
    """What differs from the data of the run; keys that are left out are those of the run."""
    schedule: Literal["continued", "rewarmed"] = "continued"
    """The learning rate goes on along the curve of the stage before, or starts a curve of its own."""
    learning_rate: float | None = None
    """Peak of an own curve; left out: that of the optimizer."""
    warmup: int | None = None
    """Steps until the peak of an own curve; left out: those of the optimizer."""
    optimizer: Literal["kept", "reset"] = "kept"
    """What becomes of the moments of the stage before."""
    learnable: bool = False
    """Train the frequencies too: the logarithm of inv_freq. Later stages build on what was learned, but on no
    temperature: where the method has one, repeat it in theirs."""
    pose_target: int | None = None
    """The length that positions are drawn from with data.pose_chunks (PoSE); left out: the stage's own."""


@dataclass(frozen=True)
class HeldOutConfig:
    """What is evaluated while training: the loss of held-out windows at several lengths."""

    every: int = 200
    """Steps between evaluations; one more stands at the end of every stage. 0: at those ends alone."""
    lengths: tuple[int, ...] = ()
    """In tokens; that of the first stage is always among them, or a checkpoint's own where that is shorter."""
    windows: int = 16
    """At every length, all ending at the same places."""
    tokens: int = 100_000
    """Text kept from training, in whole documents."""
    batch: int = 8
    """Windows a call at the longest length; shorter ones get as many tokens."""


@dataclass(frozen=True)
class CheckpointConfig:
    """When the state is saved, and what is kept."""

    every: int = 200
    """Steps between checkpoints; one more stands at the end of every stage."""
    keep: int = 2
    """Latest checkpoints that are kept."""
    keep_every: int = 0
    """Steps whose multiples are kept for ever; 0: none."""


@dataclass(frozen=True)
class LogConfig:
    """What is said while training."""

    every: int = 20
    """Steps between lines of metrics."""
    statistics_every: int = 0
    """Steps between the attention statistics of every layer (largest logit, entropy); 0: none."""
    tensorboard: bool = True
    """Write TensorBoard events beside the metrics."""
    wandb: str = ""
    """Project of Weights & Biases to send the metrics to; needs the package and an account."""


@dataclass(frozen=True)
class DistributedConfig:
    """Processes that train together; all left out with --distributed: what the cluster says."""

    coordinator: str = ""
    """ "host:port" of process 0."""
    processes: int = 0
    process: int = -1
    """Which one this is, from 0."""
    timeout: int = 60
    """Seconds until the others must have been met."""


@dataclass(frozen=True)
class RunConfig:
    """A training run: a model, where its text comes from, and stages one after the other."""

    name: str
    stages: tuple[StageConfig, ...]
    output: str = "runs"
    seed: int = 0
    """Of the initial weights; that of the text is data.seed."""
    tokens_per_batch: int = 4096
    """The same in every stage, whatever its length."""
    vocab: int = 0
    """Rows of the embedding, at least the tokens there are; 0: those of checkpoint or tokenizer, 256 for bytes."""
    export: bool = False
    """Write the trained model as a Hugging Face folder at the end: of Llama's form, or that of the checkpoint."""
    model: ModelConfig = field(default_factory=ModelConfig)
    mesh: MeshShape = field(default_factory=lambda: MeshShape(data=-1))
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    data: RecipeConfig = field(default_factory=RecipeConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    evaluate: HeldOutConfig = field(default_factory=HeldOutConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)

    def rows(self, stage: StageConfig) -> int:
        """Rows of a batch."""
        return self.tokens_per_batch // stage.length

    @property
    def steps(self) -> int:
        """Steps of all stages."""
        return sum(stage.steps for stage in self.stages)
