"""Generated answers: right as a whole where teacher forcing finds every token, whatever turns the keys."""

import dataclasses

import numpy as np
import pytest
from flax import nnx

from rope_jax import nn
from rope_jax.experiment import evaluate, measure
from rope_jax.experiment.answers import generated_hits
from rope_jax.experiment.config import EvaluateConfig, load_config
from rope_jax.experiment.encoding import encoding_of
from rope_jax.experiment.items import Questions
from rope_jax.experiment.methods import parse_method
from rope_jax.experiment.model import fresh_subject, make_decoder
from rope_jax.experiment.passkey_words import PasskeyWordsTask
from rope_jax.experiment.results import read_results
from tests.experiment.tiny import MODEL, passkey_config, run
from tests.experiment.vocabularies import BOS, VOCAB, Characters

HYBRID = dataclasses.replace(MODEL, layers=2, pattern="LG", windows={"L": 4}, sinks=True)
LENGTH = 24


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    config = passkey_config(tmp_path_factory.mktemp("model"), model=HYBRID)
    decoder = make_decoder(config, vocab=VOCAB, seed=0)
    return fresh_subject(config), decoder, evaluate.scoring_step(nnx.split(decoder)[0], 64)


def asked(counts, length=LENGTH):
    """Random items whose answers have these numbers of tokens."""
    tokens = np.random.default_rng(0).integers(0, VOCAB, (len(counts), length + 1)).astype(np.int32)
    weights = np.zeros((len(counts), length), np.float32)
    for row, count in enumerate(counts):
        weights[row, -count:] = 1.0
    return Questions(tokens, weights, None)


def words():
    """The prompts of a vocabulary of characters: answers of five digits."""
    return PasskeyWordsTask(encoding_of(Characters(asked=[BOS]), VOCAB), 5, 2, 3, 0).questions(320)


def answered(questions, decoder, **settings):
    """The items with what the model writes as their answers; in every third the first token is another one."""
    tokens = questions.tokens.copy()
    for row, weights in enumerate(questions.weights):
        count = int((weights > 0).sum())
        # Two rows, so that one program serves this and the answers that are judged.
        new = nn.generate(decoder, tokens[[row, row], :-count], max_new_tokens=count, **settings)
        tokens[row, -count:] = new.tokens[0]
        if row % 3 == 2:
            tokens[row, -count] = (tokens[row, -count] + 1) % VOCAB
    return questions._replace(tokens=tokens)


@pytest.mark.parametrize(
    ("method", "questions"),
    [
        ("Identity()", asked([3] * 5)),
        ("chain(DynamicNTK(), LogN())", asked([1, 2, 3, 2, 1])),
        ("chain(PositionInterpolation(), ReRoPE(window=6)) @ full", asked([3] * 5)),
        ("DynamicYaRN()", words()),
    ],
    ids=["plain", "by length", "score map", "words"],
)
def test_whole_answers_are_those_of_teacher_forcing(model, method, questions):
    subject, decoder, step = model
    parsed, length = parse_method(method), questions.weights.shape[1]
    given = {"factor": length / 16, "original_length": 16}
    schedules = subject.schedules(parsed.transform(**given), length=length, layers=parsed.layers)
    scoring = {
        "score_map": subject.mapped(parsed.score_map(**given), parsed.layers),
        "query_scale": subject.scaled(parsed.query_scale(original_length=16), parsed.layers),
    }
    maps = dict(scoring["score_map"]) if scoring["score_map"] else None
    full = answered(questions, decoder, schedule=schedules, score_map=maps, query_scale=scoring["query_scale"])
    hits = generated_hits(decoder, schedules, full, 2, **scoring)
    _, forced = evaluate.score(step, nnx.split(decoder)[1], schedules, full.tokens, len(full.tokens), **scoring)
    answer = full.weights > 0
    whole = [((one & answer) == answer).all(axis=1).tolist() for one in (hits, forced)]
    assert whole[0] == whole[1] == [row % 3 != 2 for row in range(len(full.tokens))]
    assert not hits[~answer].any()


def test_the_schedule_is_that_of_question_and_answer(model):
    """As `generate` has it with the answer in reserve: one schedule, that of the whole length."""
    subject, decoder, _ = model
    transform = parse_method("DynamicNTK()").transform(factor=1.0, original_length=16)
    rope, questions = subject.composed(transform), asked([3] * 2)
    prompt = questions.tokens[:, :-3]
    by_rule = nn.generate(decoder, prompt, max_new_tokens=3, schedule=rope.schedules, reserve=2)
    fixed = nn.generate(decoder, prompt, max_new_tokens=3, schedule=subject.schedules(transform, length=LENGTH))
    np.testing.assert_array_equal(by_rule.tokens, fixed.tokens)
    np.testing.assert_allclose(by_rule.log_probs, fixed.log_probs, atol=1e-5)
    assert by_rule.prefills == 1


def test_a_sweep_generates_where_it_is_asked_to(tmp_path, monkeypatch):
    """Each cell is answered as teacher forcing says; what is recorded are the hits, here those of every third item."""
    written = []

    def every_third(decoder, schedules, questions, rows, **scoring):
        written.append(generated_hits(decoder, schedules, questions, rows, **scoring))
        return (questions.weights > 0) & (np.arange(len(questions.tokens)) % 3 == 0)[:, None]

    monkeypatch.setattr(measure, "generated_hits", every_third)
    found = {}
    for generate in (False, True):
        evaluation = EvaluateConfig(depths=3, trials=2, batch=4, generate=generate)
        config = passkey_config(tmp_path / str(generate), evaluate=evaluation)
        assert run(config).failed == ()
        rows = read_results(f"{config.output}/{config.name}")
        found[generate] = [row for row in rows if row["metric"] == "passkey_accuracy"]
    assert len(written) == 4
    for forced, generated, hits in zip(*found.values(), written, strict=True):
        assert (forced["answers"], generated["answers"]) == ("teacher forced", "generated")
        # Answers of one token: whole ones and single tokens are the same.
        assert forced["value"] == forced["whole_answers"] == pytest.approx(hits.sum() / 6)
        assert generated["value"] == generated["whole_answers"] == pytest.approx(2 / 6)
        assert generated["by_depth"] == [[0.0, 0.5], [0.5, 0.5], [1.0, 0.0]]
        assert forced["key"] != generated["key"]


def test_text_asks_for_no_answers(tmp_path):
    path = tmp_path / "text.toml"
    path.write_text('name = "a"\n[evaluate]\ngenerate = true', encoding="utf-8")
    with pytest.raises(ValueError, match=r"`evaluate\.generate` must be false for data\.task"):
        load_config(path)
