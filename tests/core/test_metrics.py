"""Metrics are declared once; an undeclared name, a second declaration or a nonsensical one is refused."""

from __future__ import annotations

import pytest

from tailwise.core.errors import ConfigError
from tailwise.core.metrics import (
    DECLARATIONS,
    METRICS,
    MetricSpec,
    build,
    check_declared,
    compared_part,
    find_spec,
    is_compared,
)

SAMPLE = build(
    (
        MetricSpec("policy/kl", "nats", "KL from the old to the new policy", (0.0, 0.03)),
        MetricSpec("grad/norm_before/<group>", "1", "gradient norm of a parameter group before clipping", (None, 50.0)),
        MetricSpec("policy/entropy", "nats", "mean entropy"),
    )
)


def test_the_registry_holds_every_declaration_once() -> None:
    assert list(METRICS) == [spec.name for spec in DECLARATIONS]
    assert len(set(METRICS)) == len(DECLARATIONS)
    with pytest.raises(TypeError):
        METRICS["x/y"] = DECLARATIONS[0]  # type: ignore[index]


def test_an_undeclared_name_is_refused_with_the_nearest_one() -> None:
    check_declared(["policy/kl", "policy/entropy"], SAMPLE)
    with pytest.raises(ConfigError, match=r"'policy/k1' \(did you mean 'policy/kl'\?\), 'zzz/q'; declare them"):
        check_declared(["policy/kl", "policy/k1", "zzz/q"], SAMPLE)


def test_a_family_covers_its_members_and_nothing_else() -> None:
    check_declared(["grad/norm_before/actor", "grad/norm_before/core.layer_0"], SAMPLE)
    assert find_spec("grad/norm_before/actor", SAMPLE) is SAMPLE["grad/norm_before/<group>"]
    for stranger in ("grad/norm_before", "grad/norm_before/", "grad/norm_before/a/b", "xgrad/norm_before/a"):
        assert find_spec(stranger, SAMPLE) is None, stranger


def test_healthy_range_includes_its_bounds_and_never_nan() -> None:
    kl, norm, entropy = SAMPLE.values()
    assert [kl.is_healthy(v) for v in (-1e-9, 0.0, 0.03, 0.031)] == [False, True, True, False]
    assert [norm.is_healthy(v) for v in (-1e9, 50.0, 50.1)] == [True, True, False]
    assert entropy.is_healthy(1e9)
    assert not kl.is_healthy(float("nan"))
    assert not norm.is_healthy(float("nan"))


@pytest.mark.parametrize(
    ("name", "unit", "meaning", "healthy", "sentence"),
    [
        ("kl", "1", "m", None, "group/name"),
        ("Policy/KL", "1", "m", None, "group/name"),
        ("policy/kl", "", "m", None, "state unit and meaning"),
        ("policy/kl", "1", "", None, "state unit and meaning"),
        ("policy/kl", "1", "m", (2.0, 1.0), "from 2.0 down to 1.0"),
    ],
)
def test_a_nonsensical_declaration_is_refused(
    name: str, unit: str, meaning: str, healthy: tuple[float, float] | None, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        MetricSpec(name, unit, meaning, healthy)


def test_a_second_declaration_is_refused() -> None:
    with pytest.raises(ConfigError, match="'a/b' is declared twice"):
        build((MetricSpec("a/b", "1", "x"), MetricSpec("a/b", "s", "y")))


def test_only_names_under_time_are_left_out_of_comparisons() -> None:
    """Rejects a rule that looks for the word anywhere: `loss/time_to_live` and `timer/x` must stay."""
    row = {"time/elapsed": 1.5, "policy/kl": 0.1, "timer/x": 2.0, "loss/time_to_live": 3.0}
    assert compared_part(row) == {"policy/kl": 0.1, "timer/x": 2.0, "loss/time_to_live": 3.0}
    assert not is_compared("time/elapsed") and not is_compared("machine/memory")
    assert is_compared("timer/x")
