"""Who may import whom, which outside packages each part may use, and the public names: the tables that are tested."""

from types import MappingProxyType

# The part of the package that a module belongs to (the longest prefix of its name): the parts it may import as well.
MAY_IMPORT = MappingProxyType(
    {
        "positions": (),
        "sampled_positions": ("positions",),
        "float64": ("positions",),
        "schedule": ("float64", "positions"),
        "layout": ("schedule",),
        "phase": ("float64", "positions", "schedule"),
        "table": ("phase", "positions", "schedule"),
        "rotation": ("layout", "table"),
        "scaling.checks": ("positions",),
        "scaling.base": ("float64", "positions", "scaling.checks", "schedule"),
        "scaling": ("scaling.base", "scaling.checks", "schedule"),
        "logit_scales": ("float64", "positions", "scaling.checks"),
        "spec": ("layout", "positions", "scaling.base", "scaling.checks", "schedule"),
        "diagnostics": ("phase", "positions", "scaling", "scaling.base", "schedule", "spec", "table"),
        "attention": ("float64", "layout", "positions", "rotation", "schedule", "table"),
        "nn": ("attention", "layout", "phase", "positions", "rotation", "schedule", "table"),
        "huggingface": ("layout", "logit_scales", "positions", "scaling", "scaling.base", "schedule", "spec"),
        "huggingface.weights": ("huggingface", "layout", "nn", "positions", "schedule", "spec"),
        "parallel": ("attention", "nn", "positions", "schedule"),
        "experiment": (
            *("attention", "diagnostics", "huggingface", "huggingface.weights", "layout", "logit_scales", "nn"),
            *("parallel", "phase", "positions", "rotation", "sampled_positions", "scaling", "scaling.base"),
            *("schedule", "spec", "table"),
        ),
    }
)
COMPOSED = MappingProxyType({"scaling.yarn": "scaling.by_parts", "scaling.llama3": "scaling.by_parts"})

CORE = ("jax", "jaxtyping", "numpy")
WORKBENCH = (
    *CORE,
    *("datasets", "flax", "grain", "jinja2", "markupsafe", "matplotlib", "optax", "orbax", "ray", "rich"),
    *("tensorboardX", "tokenizers", "tyro", "wandb"),
)
MAY_USE = MappingProxyType(
    {
        "nn": (*CORE, "flax"),
        "parallel": (*CORE, "flax"),
        "huggingface": (*CORE, "gguf", "huggingface_hub", "safetensors", "tokenizers"),
        "huggingface.weights": (*CORE, "flax", "gguf", "huggingface_hub", "safetensors", "tokenizers"),
        "experiment": WORKBENCH,
    }
)
ORACLES = ("mpmath", "torch", "transformers")

PUBLIC = (
    *("AttentionTemperature", "BaseChange", "ClippedRoPE", "Drop", "DualChunk", "DynamicNTK"),
    *("DynamicYaRN", "FrequencySchedule", "FrequencyTransform", "Identity", "LMInfinite", "LeakyReRoPE"),
    *("Llama3", "LogN", "LongRoPE", "ModelRope", "NTKAware", "NTKByParts", "PositionInterpolation", "Proportional"),
    *("ReRoPE", "Region", "Rescale", "Resonance", "RopeSpec", "RotaryTable", "ScoreMap", "SelfExtend"),
    *("YaRN", "attend", "chain", "check_positions", "convert_layout", "diagnostics", "from_huggingface"),
    *("geometric_schedule", "lengths", "packed_positions", "padded_positions", "pose_positions"),
    *("random_positions", "rotary_table", "rotary_width", "rotate", "streaming_positions"),
    *("to_huggingface", "unrotate"),
)
