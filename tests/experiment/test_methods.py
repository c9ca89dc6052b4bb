"""Method expressions: what they build, how they are written back, and what is refused."""

import pytest

import rope_jax as rj
from rope_jax.experiment.methods import parse_method
from rope_jax.scaling import METHODS

NEEDS_KEYWORDS = {
    "BaseChange": "theta=5e5",
    "LongRoPE": "short_factors=[1, 1], long_factors=[1, 2]",
    "ClippedRoPE": "pairs=2",
    "Proportional": "fraction=0.5",
    "Rescale": "factors=(1.0, 2.0)",
    "AttentionTemperature": "scale=1.5",
}


@pytest.mark.parametrize(
    ("text", "transform"),
    [
        ("Identity()", rj.Identity()),
        ("PositionInterpolation()", rj.PositionInterpolation(factor=4.0)),
        ("PositionInterpolation(factor=8)", rj.PositionInterpolation(factor=8)),
        ("YaRN()", rj.YaRN(factor=4.0, original_length=64, beta_fast=4.0)),
        ("YaRN(beta_fast=8)", rj.YaRN(factor=4.0, original_length=64, beta_fast=8)),
        ("YaRN(original_length=4096)", rj.YaRN(factor=4.0, original_length=4096, beta_fast=32.0)),
        (
            "YaRN(ramp='turns', truncate=False)",
            rj.YaRN(factor=4.0, original_length=64, beta_fast=4.0, ramp="turns", truncate=False),
        ),
        ("YaRN(attention_scale=None)", rj.YaRN(factor=4.0, original_length=64, beta_fast=4.0)),
        ("NTKByParts()", rj.NTKByParts(factor=4.0, original_length=64, beta=4.0)),
        ("DynamicNTK()", rj.DynamicNTK(factor=1.0, original_length=64)),
        ("DynamicNTK(factor=2)", rj.DynamicNTK(factor=2, original_length=64)),
        ("DynamicYaRN()", rj.DynamicYaRN(factor=1.0, original_length=64, beta_fast=4.0)),
        ("Rescale(factors=[1, 2.5])", rj.Rescale(factors=(1, 2.5))),
        ("chain()", rj.Identity()),
        ("chain(NTKAware(), Resonance())", rj.chain(rj.NTKAware(factor=4.0), rj.Resonance())),
        ("chain(NTKAware(), chain(Resonance(), AttentionTemperature(scale=-1.5e0)))", None),
    ],
)
def test_builds(text, transform):
    method = parse_method(text)
    if transform is None:
        with pytest.raises(ValueError, match=r"scale.*above 0.*-1\.5"):
            method.transform(factor=4.0, original_length=64)
    else:
        assert method.transform(factor=4.0, original_length=64) == transform


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_written(name):
    method = parse_method(f"{name}({NEEDS_KEYWORDS.get(name, '')})")
    transform = method.transform(factor=2.0, original_length=64)
    assert type(transform) is METHODS[name]
    assert method.needs_length == transform.needs_length


def test_beta_fast_is_the_published_one_at_the_published_length():
    assert parse_method("YaRN()").transform(factor=2.0, original_length=4096) == rj.YaRN(
        factor=2.0, original_length=4096
    )


@pytest.mark.parametrize(
    ("text", "canonical", "label"),
    [
        ("YaRN( )", "YaRN(beta_fast=4.0)", "YaRN"),
        ("YaRN(beta_fast=8)", "YaRN(beta_fast=8)", "YaRN(beta_fast=8)"),
        ("YaRN(factor=2,beta_fast=8)", "YaRN(beta_fast=8, factor=2)", "YaRN(beta_fast=8, factor=2)"),
        ("Rescale(factors=[1,2])", "Rescale(factors=(1, 2))", "Rescale(factors=(1, 2))"),
        ("DynamicNTK()", "DynamicNTK()", "DynamicNTK"),
        ("chain( NTKAware(),Resonance() )", "chain(NTKAware(), Resonance())", "NTKAware + Resonance"),
        ("chain(YaRN())", "YaRN(beta_fast=4.0)", "YaRN"),
        ("chain()", "Identity()", "Identity"),
    ],
)
def test_canonical_text_and_label(text, canonical, label):
    method = parse_method(text)
    assert (method.text(original_length=64), method.label) == (canonical, label)
    again = parse_method(canonical)
    assert again.text(original_length=64) == canonical
    assert again.transform(factor=4.0, original_length=64) == method.transform(factor=4.0, original_length=64)


@pytest.mark.parametrize(
    ("text", "takes", "written"),
    [
        ("YaRN()", True, None),
        ("YaRN(factor=2)", False, 2.0),
        ("chain(PositionInterpolation(factor=2), YaRN())", True, 2.0),
        ("DynamicYaRN()", False, None),
        ("Resonance()", False, None),
    ],
)
def test_who_takes_the_factor_of_the_cell(text, takes, written):
    method = parse_method(text)
    assert (method.takes_factor, method.written_factor) == (takes, written)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Yarn()", r"known methods; got 'Yarn'.*'YaRN'"),
        ("PositionInterpolatoin()", "'PositionInterpolation'"),
        ("chian(YaRN())", "'chain'"),
        ("YaRN(beta_slo=1)", r"known keywords; got 'beta_slo'.*'beta_slow'"),
        ("YaRN(**{})", "known keywords; got None"),
        ("YaRN(8)", "keywords only"),
        ("YaRN", r"must be calls.*parentheses"),
        ("YaRN(", "must hold expressions"),
        ("", "must hold expressions"),
        ("YaRN(beta_fast=1, beta_fast=2)", "once|must hold expressions"),
        ("YaRN(beta_fast=2 * 4)", r"must be a number.*2 \* 4"),
        ("YaRN(beta_fast=1j)", "must be a number"),
        ("YaRN(beta_fast={})", "must be a number"),
        ("YaRN(beta_fast={[]})", "must be a number"),
        ("YaRN(\0)", "must hold expressions"),
        ("Rescale(factors=[1, 'a'])", "must be a number"),
        ("Rescale(factors=[1, True])", "must be a number"),
        ("chain(YaRN(), factor=2)", "transforms only"),
        ("__import__('os').getcwd()", "must be calls"),
        ("YaRN(beta_fast=__import__('os').getpid())", "must be a number"),
        ("(lambda: YaRN())()", "must be calls"),
    ],
)
def test_refuses(text, message):
    with pytest.raises(ValueError, match=message):
        parse_method(text)


def test_missing_keywords_are_named():
    with pytest.raises(ValueError, match=r"LongRoPE without short_factors, long_factors"):
        parse_method("LongRoPE()").transform(factor=2.0, original_length=64)
