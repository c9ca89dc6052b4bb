"""Which layers a method edits: the choice behind its `@`, in schedules, score maps and logit scales."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import rope_jax as rj
from rope_jax.experiment import evaluate
from rope_jax.experiment.config import bearing, config_dict, validate
from rope_jax.experiment.layers import LogitScale
from rope_jax.experiment.methods import parse_method
from rope_jax.experiment.model import Subject, fresh_subject, make_decoder
from rope_jax.experiment.plan import plan
from rope_jax.experiment.results import cell_key, read_results
from rope_jax.logit_scales import Llama4QueryScale
from tests.experiment.tiny import MODEL, passkey_config, run

HYBRID = dataclasses.replace(MODEL, layers=2, pattern="LG", windows={"L": 4}, thetas={"L": 100.0})
METHODS = tuple(f"PositionInterpolation(){choice}" for choice in ("", " @ all", " @ full", " @ sliding"))


@pytest.fixture
def config(tmp_path):
    tiny = passkey_config(tmp_path, model=HYBRID)
    return dataclasses.replace(tiny, sweep=dataclasses.replace(tiny.sweep, methods=METHODS))


@pytest.mark.parametrize(
    ("choice", "edited"),
    [("auto", ("G",)), ("all", ("L", "G")), ("full", ("G",)), ("sliding", ("L",))],
)
def test_chosen_groups_change_and_the_others_are_bit_equal(config, choice, edited):
    subject: Any = fresh_subject(config)
    plain = subject.schedules(rj.Identity(), length=32)
    halved = subject.schedules(rj.PositionInterpolation(factor=2.0), length=32, layers=choice)
    assert subject.edited(choice) == edited
    for group in "LG":
        wanted = plain[group].inv_freq / (2 if group in edited else 1)
        np.testing.assert_array_equal(halved[group].inv_freq, wanted)


def test_every_group_has_its_own_base(config):
    subject: Any = fresh_subject(config)
    bases = {group: spec.theta for group, spec in subject.rope.specs.items()}
    assert bases == {"L": 100.0, "G": 10_000.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"thetas": {"X": 100.0}}, r"`model\.thetas` must name groups of model\.pattern = 'LG'; got 'X'"),
        ({"thetas": {"L": 1.0}}, r"`model\.thetas\.L` must be above 1; got 1\.0"),
        ({"no_rope": ("L",)}, r"`model\.thetas\.L` must belong to layers that turn"),
    ],
)
def test_bases_that_no_layer_turns_by_are_refused(config, changes, message):
    with pytest.raises(ValueError, match=message):
        validate(dataclasses.replace(config, model=dataclasses.replace(HYBRID, **changes)))


def test_results_of_one_base_keep_their_hash(config):
    """What is left out of the hash while it is not used."""
    one = dataclasses.replace(config, model=dataclasses.replace(HYBRID, thetas={}))
    assert "model.thetas" not in bearing(config_dict(one)) and "evaluate.generate" not in bearing(config_dict(one))
    assert bearing(config_dict(config))["model.thetas"] == {"L": 100.0}


def test_a_window_beyond_the_trained_length_is_edited_unless_full_layers_are_chosen(config):
    wide = Subject(fresh_subject(config).rope, {"L": 32}, trained_length=16)
    assert (wide.edited(), wide.edited("full")) == (("L", "G"), ("G",))


@pytest.mark.parametrize(
    ("text", "canonical", "label", "layers"),
    [
        ("YaRN() @ full", "YaRN(beta_fast=4.0) @ full", "YaRN, full layers", "full"),
        ("YaRN()@sliding", "YaRN(beta_fast=4.0) @ sliding", "YaRN, sliding layers", "sliding"),
        ("chain(YaRN(), LogN()) @ all", "chain(YaRN(beta_fast=4.0), LogN()) @ all", "YaRN + LogN, all layers", "all"),
        ("YaRN()", "YaRN(beta_fast=4.0)", "YaRN", "auto"),
    ],
)
def test_the_choice_is_part_of_the_text(text, canonical, label, layers):
    method = parse_method(text)
    assert (method.text(original_length=64), method.label, method.layers) == (canonical, label, layers)
    assert parse_method(canonical).text(original_length=64) == canonical


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("YaRN() @ slidng", r"name layers by all, full or sliding; got 'slidng'.*'sliding'"),
        ("YaRN() @ full()", r"got 'full\(\)'.*'full'"),
        ("YaRN() @ full @ all", "choose layers once"),
        ("chain(YaRN() @ full, LogN())", "choose layers once, for the whole of a method; got 'YaRN.. @ full'"),
        ("YaRN() + full", "must be calls"),
    ],
)
def test_refuses_what_is_no_choice(text, message):
    with pytest.raises(ValueError, match=message):
        parse_method(text)


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ("YaRN() @ sliding", {"windows": {}}, r"choose layers that the model has; got 'YaRN\(\) @ sliding' .*window"),
        ("YaRN() @ full", {"windows": {"L": 4, "G": 4}}, "without a layer that sees the whole past"),
        ("YaRN() @ full", {"no_rope": ("G",)}, "reach a rotated layer among the full ones; got 'YaRN.. @ full'"),
        ("SelfExtend() @ full", {"no_rope": ("G",)}, "reach a rotated layer among the full ones"),
        ("LogN()", {"no_rope": ("G",)}, "reach a rotated layer whose window exceeds the trained length"),
        ("YaRN()", {"windows": {"L": 4, "G": 4}}, "Write `@ all` behind it"),
        ("YaRN()", {"no_rope": ("G", "L")}, "Leave a group of model.pattern out of no_rope"),
    ],
)
def test_a_plan_refuses_layers_that_are_not_there(config, method, changes, message):
    changed = dataclasses.replace(config, model=dataclasses.replace(HYBRID, **changes))
    swept = dataclasses.replace(changed, sweep=dataclasses.replace(config.sweep, methods=(method,)))
    with pytest.raises(ValueError, match=message):
        plan(swept)


def test_choices_stand_side_by_side_in_one_sweep(config):
    cells = [cell for cell in plan(config) if cell.length == 32 and cell.metric == "passkey_accuracy"]
    assert len({cell_key(config, cell.row()) for cell in cells}) == len(METHODS)
    assert run(config).failed == ()
    rows = {row["method"]: row for row in read_results(f"{config.output}/{config.name}") if row["length"] == 32}
    rows.pop("Identity()", None)
    assert set(rows) == set(METHODS)
    assert rows[METHODS[2]]["layers"] == {"chosen": "full", "frequencies": ["G"]}
    assert rows[METHODS[3]]["inv_freq"][0] == 0.5 and rows[METHODS[3]]["layers"]["frequencies"] == ["L"]
    assert "layers" not in rows[METHODS[0]]


def test_maps_and_scales_reach_the_chosen_layers_alone(config):
    subject: Any = fresh_subject(config)
    decoder = make_decoder(config, vocab=10, seed=0)
    graphdef, params = nnx.split(decoder)
    step = evaluate.scoring_step(graphdef, 64)
    schedules = subject.schedules(rj.Identity(), length=24)
    tokens = np.random.default_rng(0).integers(0, 10, (2, 25)).astype(np.int32)
    positions = jnp.arange(24, dtype=jnp.int32)[None]
    score_map, rule = rj.ReRoPE(window=2), rj.LogN(original_length=4)
    for layers, chosen in (("full", "G"), ("sliding", "L")):
        settings = {"score_map": subject.mapped(score_map, layers), "query_scale": subject.scaled(rule, layers)}
        losses = evaluate.score(step, params, schedules, tokens, 2, **settings)[0]
        by_group = {
            "score_map": {group: score_map if group == chosen else None for group in "LG"},
            "query_scale": {group: rule(positions) if group == chosen else None for group in "LG"},
        }
        whole = jax.jit(lambda model, given=by_group: model(tokens[:, :-1], schedules, positions=positions, **given))
        logits = jax.nn.log_softmax(whole(decoder))
        wanted = -np.take_along_axis(np.asarray(logits), tokens[:, 1:, None], axis=-1)[..., 0]
        np.testing.assert_allclose(losses, wanted, rtol=0, atol=1e-5)


def test_a_models_own_scales_are_multiplied_with_those_of_a_method():
    own = Llama4QueryScale(floor=4)
    specs = {
        "a": rj.RopeSpec(8, softmax_scale=2.0),
        "b": rj.RopeSpec(8, query_scale=own),
        "c": rj.RopeSpec(8),
        "d": None,
    }
    subject: Any = Subject(rj.ModelRope(specs, tuple(specs)), {"a": 4, "b": 4})
    rule, positions = rj.LogN(original_length=4), jnp.arange(20, dtype=jnp.int32)[None]
    made = subject.scaled(rule, "full")
    assert made is not None and hash(made["b"]) == hash(LogitScale(1.0, (own,)))
    np.testing.assert_array_equal(made["a"](positions), 2.0)
    np.testing.assert_array_equal(made["b"](positions), own(positions))
    np.testing.assert_array_equal(made["d"](positions), rule(positions))
    both = subject.scaled(rule, "sliding")
    np.testing.assert_array_equal(both["b"](positions), own(positions) * rule(positions))
    assert both["c"] is None
    plain = Subject(rj.ModelRope({"c": rj.RopeSpec(8)}, ("c",)))
    assert plain.scaled(None) is None
