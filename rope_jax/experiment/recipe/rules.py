"""The rules of a recipe and of a call for its batches, checked before any document is read."""

import math

from rope_jax.experiment.recipe.settings import RecipeConfig
from rope_jax.positions import LARGEST_POSITION

SHORTEST_ROW = 2
SEEDS = 2**32
LEAST_SHARE = 1e-6  # of the trained tokens; a source with less would be listed, and not trained on


def check_recipe(recipe: RecipeConfig) -> None:
    """Checks every setting of a recipe against its range.

    Raises:
        ValueError: the first broken rule, as setting, rule, value and cure.
    """
    _require(bool(recipe.sources), "data.sources", "hold a source", recipe.sources, "Name where the text is.")
    for number, source in enumerate(recipe.sources):
        path = f"data.sources[{number}]"
        positive = math.isfinite(source.weight) and source.weight > 0
        _require(
            positive, f"{path}.weight", "be above 0 and finite", source.weight, "Delete the source to leave it out."
        )
        _require(source.shortest >= 1, f"{path}.shortest", "be at least 1", source.shortest, "Count tokens.")
        longest = source.longest
        _require(
            longest is None or longest >= source.shortest,
            f"{path}.longest",
            f"be at least `shortest`, {source.shortest}",
            longest,
            "Raise it, or leave it out for no bound.",
        )
    total = sum(source.weight for source in recipe.sources)
    for number, source in enumerate(recipe.sources):
        rule = f"be at least {LEAST_SHARE:g} of all weights, {total}"
        seen = source.weight >= LEAST_SHARE * total
        _require(seen, f"data.sources[{number}].weight", rule, source.weight, "Raise it, or delete the source.")
    packings = ("best_fit", "concat", "none")
    _require(recipe.packing in packings, "data.packing", f"be one of {packings}", repr(recipe.packing), "Take one.")
    _require(0 <= recipe.seed < SEEDS, "data.seed", "be from 0 to 2^32 - 1", recipe.seed, "Take a small number.")
    _require(recipe.pose_chunks >= 0, "data.pose_chunks", "be at least 0", recipe.pose_chunks, "Write 0 for no PoSE.")
    named = recipe.end_token not in ("auto", "none")
    _require(bool(recipe.end_token), "data.end_token", "be a token's name", "nothing", 'Write "none" for no end token.')
    _require(
        bool(recipe.tokenizer) or not named,
        "data.end_token",
        'be "auto" or "none" for bytes, which have none',
        repr(recipe.end_token),
        "Name a tokenizer.",
    )


def check_batches(
    recipe: RecipeConfig, length: int, rows: int, process: int, processes: int, target_length: int | None
) -> None:
    """Checks what is asked of a recipe; see `batches` for the arguments.

    Raises:
        ValueError: the first broken rule.
    """
    check_recipe(recipe)
    _require(
        length >= SHORTEST_ROW, "length", f"be at least {SHORTEST_ROW}", length, "A target needs a token before it."
    )
    _require(rows >= 1, "rows", "be at least 1", rows, "Raise the tokens per batch, or shorten the rows.")
    _require(processes >= 1, "processes", "be at least 1", processes, "One process is `processes=1`.")
    _require(0 <= process < processes, "process", f"be from 0 to {processes - 1}", process, "Count processes from 0.")
    tokens = rows * length
    for bucket in recipe.buckets:
        rule = f"hold lengths from {SHORTEST_ROW} to that of the rows, {length}"
        _require(SHORTEST_ROW <= bucket <= length, "data.buckets", rule, bucket, "Leave it out.")
        rule = f"hold divisors of the {tokens} tokens of a batch"
        _require(tokens % bucket == 0, "data.buckets", rule, bucket, "Take a divisor of the row length.")
    distinct = len(set(recipe.buckets)) == len(recipe.buckets)
    _require(distinct, "data.buckets", "hold each length once", recipe.buckets, "Delete the repeated one.")
    for bucket in bucket_lengths(recipe, length):
        _require(
            (tokens // bucket) % processes == 0,
            "rows",
            f"be a multiple of the {processes} processes",
            f"{tokens // bucket} rows of {bucket} tokens",
            "Change the tokens per batch.",
        )
    _check_pose(recipe, length, target_length)


def bucket_lengths(recipe: RecipeConfig, length: int) -> tuple[int, ...]:
    """The row lengths of a recipe, rising; the full one is always among them.

    Example:
        >>> bucket_lengths(RecipeConfig(buckets=(64, 16)), 128)
        (16, 64, 128)
    """
    return tuple(sorted({*recipe.buckets, length}))


def _check_pose(recipe: RecipeConfig, length: int, target_length: int | None) -> None:
    if recipe.pose_chunks:
        shortest = bucket_lengths(recipe, length)[0]
        _require(
            recipe.pose_chunks <= shortest,
            "data.pose_chunks",
            f"be at most the {shortest} tokens of the shortest row",
            recipe.pose_chunks,
            "Use 2.",
        )
        _require(
            target_length is not None and target_length >= length,
            "target_length",
            f"be given for PoSE, and at least the row length {length}",
            target_length,
            "Aim further, or write pose_chunks = 0.",
        )
        within = target_length is None or target_length <= LARGEST_POSITION
        _require(within, "target_length", "be at most 2^31 - 1", target_length, "Aim less far.")
    else:
        _require(
            target_length is None,
            "target_length",
            "be left out without PoSE",
            target_length,
            "Write pose_chunks = 2, or leave the target out.",
        )


def _require(holds: bool, path: str, rule: str, value: object, cure: str) -> None:
    if not holds:
        raise ValueError(f"`{path}` must {rule}; got {value}. {cure}")
