"""`tailwise data leak-check CONFIG` as a person uses it: quiet where nothing leaks, a name where something does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.terminal import Terminal

# A feature that looks ahead by two bars, one that knows the whole series, and one that looks back only.
FEATURES = """
from tailwise.features import CLOSE, batch_feature, feature


@batch_feature("centred", warm_up=4, unit="ratio", meaning="mean of the closes two bars back to two bars ahead / close")
def centred(frame):
    return frame["close"].rolling(5, center=True, min_periods=1).mean() / frame["close"]


@batch_feature("rank", warm_up=4, unit="share", meaning="rank of the close among all closes")
def rank(frame):
    return frame["close"].rank(pct=True)


@batch_feature("trailing", warm_up=4, unit="ratio", meaning="mean of the last five closes / close")
def trailing(frame):
    return frame["close"].rolling(5, min_periods=1).mean() / frame["close"]


@feature("last_change", warm_up=1, state_size=2, unit="ratio", meaning="close / previous close")
def last_change(state, bar):
    before = state[0]
    state[0] = bar[CLOSE]
    return bar[CLOSE] / before if before > 0.0 else 1.0
"""

MARKET = """
data: {{kind: synthetic, market: ar1, parameters: {{length: 800}}}}
features: {{modules: [mine.py], include: [return_1, {column}]}}
env: {{kind: market, action: {{kind: positions, positions: [-1, 0, 1]}}, episode_length: 64}}
"""


@pytest.fixture
def leak_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    monkeypatch.chdir(tmp_path)
    return Terminal(capsys, "data", "leak-check")


@pytest.mark.parametrize("preset", ["sp500", "sine"])
def test_presets_do_not_leak(preset: str, leak_check: Terminal) -> None:
    assert leak_check(preset, "--cuts", "2") == 0
    verdicts = [line for line in leak_check.out.splitlines() if "compared in" not in line]
    assert verdicts == [f"{subject}: no leak found" for subject in ("features", "fit", "environment")]
    assert leak_check.error == ""


def test_a_portfolio_is_checked_as_it_is_traded(leak_check: Terminal) -> None:
    """Rejects a check that knows accounts with one asset only."""
    Path("two.yaml").write_text(
        "data: {kind: synthetic, market: ar1, seeds: [0, 1], parameters: {length: 400}}\n"
        "features: {include: [return_1, volatility_20]}\n"
        "env: {kind: market, action: {kind: weights, low: 0, high: 1, gross: 1}, episode_length: 64}\n"
    )
    found = leak_check.json("two.yaml", "--cuts", "1", code=0)
    assert [report["subject"] for report in found["reports"]] == ["features", "features", "fit", "environment"]


def test_the_preset_that_leaks_is_caught_by_name(leak_check: Terminal) -> None:
    """Its column comes with the bars. Rejects a scale taken anew from the bars that are left, which made the check
    speak of values that change and of a reach of thousands of bars, neither of which there is."""
    assert leak_check("leak", "--cuts", "2") == 1
    assert "feature 'next_log_return' varies but does not depend on the bars" in leak_check.out
    assert "observation 'next_log_return' varies but does not depend on the bars" in leak_check.out
    assert "features: 1 of the values fail the check" in leak_check.out
    assert "fit: no leak found" in leak_check.out
    assert "ahead" not in leak_check.out
    assert leak_check.error == ""


@pytest.mark.parametrize(("column", "reach"), [("centred", 2), ("rank", 100)])
def test_a_feature_of_ones_own_that_looks_ahead_is_caught(column: str, reach: int, leak_check: Terminal) -> None:
    Path("mine.py").write_text(FEATURES)
    Path("mine.yaml").write_text(MARKET.format(column=column))
    found = leak_check.json("mine.yaml", "--cuts", "4", code=1)
    assert found["passed"] is False
    features, _, environment = found["reports"]
    assert [finding["name"] for finding in features["findings"]] == [f"feature '{column}'"], "and no innocent one"
    assert any(column in finding["name"] for finding in environment["findings"]), "the policy sees it too"
    (finding,) = features["findings"]
    assert finding["reach"] == reach if column == "centred" else finding["reach"] > reach

    assert leak_check("mine.yaml", "--cuts", "4") == 1
    assert f"feature '{column}' at bar " in leak_check.out
    assert f"it looks at least {finding['reach']} bars ahead" in leak_check.out
    assert "features: 1 of the values fail the check" in leak_check.out


@pytest.mark.parametrize("column", ["trailing", "last_change"])
def test_the_same_feature_without_the_future_passes(column: str, leak_check: Terminal) -> None:
    """Rejects a check that accuses whatever a user writes."""
    Path("mine.py").write_text(FEATURES)
    Path("mine.yaml").write_text(MARKET.format(column=column))
    found = leak_check.json("mine.yaml", "--cuts", "4", code=0)
    assert found["passed"] is True
    assert all(report["findings"] == [] and report["comparisons"] > 0 for report in found["reports"])


def test_a_leak_put_in_on_the_command_line_is_caught(
    leak_check: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules lie beside the configuration, wherever the command runs; -s changes what is checked."""
    Path("mine.py").write_text(FEATURES)
    Path("mine.yaml").write_text(MARKET.format(column="trailing"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert leak_check("../mine.yaml", "--cuts", "1", "-s", "features.include=[trailing]") == 0
    assert leak_check("../mine.yaml", "--cuts", "1", "-s", "features.include=[centred]") == 1
    assert "feature 'centred' at bar " in leak_check.out


def test_json_is_one_object_for_programs(leak_check: Terminal) -> None:
    small = ("sine", "-s", "data.parameters={length: 600}")
    found = leak_check.json(*small, "--cuts", "2", "--seed", "3", code=0)
    assert list(found) == ["passed", "reports"]
    assert [report["subject"] for report in found["reports"]] == ["features", "fit", "environment"]
    for report in found["reports"]:
        assert report["passed"] is True
        assert report["values"] > 0, "a check that compared nothing is no pass"
        assert report["bars"] == 600
    more = leak_check.json(*small, "--cuts", "30", code=0)
    assert len(more["reports"][0]["cuts"]) > len(found["reports"][0]["cuts"])


def test_what_has_no_bars_is_a_sentence(leak_check: Terminal) -> None:
    assert leak_check("cartpole") == 2
    assert leak_check.out == ""
    assert leak_check.error == (
        "error: cartpole: env.kind is gym; a leak-check needs the bars and features of a market.\n"
    )
    assert leak_check("no-such-preset") == 2
    assert leak_check.error.startswith("error: 'no-such-preset' is neither a file nor a preset")
    assert leak_check("sine", "--cuts", "0") == 2


def test_bars_too_few_to_check_are_a_sentence_and_no_pass(leak_check: Terminal) -> None:
    assert leak_check("sine", "-s", "data.parameters={length: 30}") == 2
    (line,) = leak_check.error.splitlines()
    assert line.startswith("error: ")
    assert "no leak found" not in leak_check.out
