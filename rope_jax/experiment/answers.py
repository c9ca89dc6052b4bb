"""Answers that a model generates, judged token by token."""

from collections.abc import Mapping

import numpy as np

from rope_jax import nn
from rope_jax.attention.score_maps import ScoreMap
from rope_jax.experiment.evaluate import Schedules
from rope_jax.experiment.items import Questions
from rope_jax.experiment.layers import GroupMaps, Rule


def generated_hits(
    decoder: nn.Decoder,
    schedules: Schedules,
    questions: Questions,
    rows: int,
    *,
    query_scale: Mapping[str, Rule | None] | None = None,
    score_map: ScoreMap | GroupMaps | None = None,
) -> np.ndarray:
    """Which tokens of each answer the model writes by itself: greedy, from the question on, through a cache.

    A whole answer is right if and only if it is under teacher forcing. After a wrong token the next ones are judged
    by the model's own, so shares of single tokens are not the same.

    Args:
      decoder: the model.
      schedules: those of the whole request, question and answer, as `generate` with `reserve` has them: no schedule
        changes in mid-answer.
      questions: an answer is the last tokens of its item, those with a weight.
      rows: items a call; the last call is filled up with copies, so that one shape is compiled.
      query_scale: layer group -> rule from positions to a factor on queries.
      score_map: what far keys are rotated by instead, for all layers or by group.

    Returns:
      bool [items, length], False outside the answers.
    """
    counts = (questions.weights > 0).sum(axis=1)
    hits = np.zeros(questions.weights.shape, np.bool_)
    for count in np.unique(counts).tolist():
        items = np.flatnonzero(counts == count)
        for start in range(0, len(items), rows):
            part = items[start : start + rows]
            filled = questions.tokens[np.concatenate([part, np.repeat(part[-1:], rows - len(part))])]
            new = nn.generate(
                decoder,
                filled[:, :-count],
                max_new_tokens=count,
                schedule=schedules,
                score_map=dict(score_map) if isinstance(score_map, tuple) else score_map,
                query_scale=query_scale,
            )
            hits[part, -count:] = new.tokens[: len(part)] == filled[: len(part), -count:]
    return hits
