"""What is shown while a run goes on, driven by a real run."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from tailwise.cli.progress import LiveProgress
from tailwise.core.errors import duration, number
from tailwise.run.agent import PPO
from tailwise.run.callbacks import Progress
from tailwise.run.config import parse_config
from tailwise.run.health import Alert
from tailwise.run.progress import Labels, PlainProgress, Speed, figures, labels_of


def labels(**config: Any) -> Labels:
    return labels_of(parse_config(config, source="test"))


LABELS, OFF = labels(), labels(risk={"mode": "off"})
SMALL = {"run": {"environments": 4, "rollout_steps": 16, "total_steps": 192}, "learner": {"epochs": 1}}


def test_the_live_display_shows_the_bar_and_the_figures() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, color_system=None)
    display = LiveProgress(LABELS, console)
    PPO("CartPole-v1", SMALL, callbacks=[display]).learn()
    shown = screen.getvalue()
    for part in (
        "update 3",
        "192/192",
        "steps/s",
        "left",
        "return",
        "CVaR 5% over 300 steps",
        "KL",
        "entropy",
        "explained variance",
    ):
        assert part in shown
    assert shown.endswith("\x1b[?25h")  # the cursor is given back


def test_the_live_display_shows_the_last_alert_until_the_end() -> None:
    screen = io.StringIO()
    display = LiveProgress(OFF, Console(file=screen, force_terminal=True, width=120, color_system=None))
    alert = Alert(1, "gradient_norm", "warn", "it is 60", "lower the learning rate")
    display.on_start(0, 0, 200)
    display.on_update(Progress(1, 100, 200, {"policy/kl": 0.01}, (alert,)))
    display.on_update(Progress(2, 200, 200, {"policy/kl": 0.02}, ()))
    display.on_end("done")
    last = screen.getvalue().rsplit("update 2", 1)[1]
    assert "update 1: warn gradient_norm: it is 60; lower the learning rate" in last
    assert "CVaR" not in last


def test_the_tail_has_its_level_its_horizon_and_its_unit() -> None:
    """Rejects "CVaR 0.05 -0.09": a level that reads like a number, without horizon and unit. Also a CVaR without its
    limit, a multiplier of 0 that hides a warm-up, and a limit put beside a CVaR that it does not speak of."""
    found = {"episode/return": 0.1, "risk/cvar_return": -0.071, "risk/measure": -0.071, "policy/kl": 0.01}
    market = {"data": {"kind": "builtin", "names": ["sp500"]}, "env": {"kind": "market"}, "learner": {"gamma": 0.97}}
    plain = labels(**market, risk={"mode": "report"})
    assert figures(found, plain) == [
        ("episode log-return", "10%"),
        ("CVaR 5% over 100 bars", "-7.1%"),
        ("KL", "0.01"),
    ]
    assert figures(found, labels())[:2] == [("episode return", "0.1"), ("CVaR 5% over 300 steps", "-0.071 reward")]
    limited = found | {"risk/limit": -0.08, "risk/multiplier": 0.4, "risk/active": 1.0}
    constraint = {"mode": "constraint", "limit": -0.08}
    tail = labels(**market, risk=constraint)
    assert figures(limited, tail)[1:3] == [("CVaR 5% over 100 bars", "-7.1% (limit -8%)"), ("multiplier", "0.4")]
    elsewhere = labels(risk={**constraint, "alpha": 0.025})
    assert figures(limited, elsewhere)[1] == ("CVaR 2.5% over 300 steps", "-0.071 reward (limit -0.08)")
    waiting = limited | {"risk/active": 0.0, "risk/multiplier": 0.0}
    assert figures(waiting, tail)[2] == ("multiplier", "0 (warm-up: the limit does not act yet)")
    wang = labels(**market, risk={**constraint, "measure": {"kind": "wang", "eta": 0.75}})
    assert figures(limited | {"risk/measure": -0.05}, wang)[1:4] == [
        ("Wang 0.75 over 100 bars", "-5% (limit -8%)"),
        ("multiplier", "0.4"),
        ("CVaR 5% over 100 bars", "-7.1%"),
    ]
    refused = {name: value for name, value in limited.items() if name != "risk/measure"}
    assert figures(refused, tail)[1] == ("CVaR 5% over 100 bars", "- (limit -8%)")


def test_a_real_run_with_a_limit_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Rejects metric names that the trainer does not write."""
    risk = {"mode": "constraint", "limit": -3.0, "warmup": {"updates": 1, "longest": 2}}
    display = PlainProgress(labels(env={"id": "CartPole-v1"}, risk=risk))
    PPO("CartPole-v1", {**SMALL, "risk": risk}, callbacks=[display]).learn()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("update ") and "steps/s" in line]
    assert " (limit -3), multiplier 0 (warm-up" in lines[0] and "CVaR 5% over 300 steps " in lines[0]
    assert " (limit -3), multiplier 0," in lines[-1]


def test_plain_lines_come_every_few_seconds_and_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    """Rejects a line per update, which fills the log of a long run."""
    PPO("CartPole-v1", SMALL, callbacks=[PlainProgress(LABELS)]).learn()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("update ")]
    assert len(lines) == 2
    assert lines[0].startswith("update 1, 64/192 steps, ")
    assert lines[1].startswith("update 3, 192/192 steps, ")


def test_an_alert_of_the_same_rule_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainProgress(OFF)
    display.on_start(0, 0, 1000)
    for update in (1, 2, 3):
        alert = Alert(update, "gradient_norm", "warn", "it is 60", "lower the learning rate")
        display.on_update(Progress(update, 100 * update, 1000, {}, (alert,)))
    assert capsys.readouterr().out.count("gradient_norm") == 1


def test_notes_are_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Rejects a run that compiles for a quarter of a minute and says nothing."""
    screen = io.StringIO()
    live = LiveProgress(OFF, Console(file=screen, force_terminal=True, width=120, color_system=None))
    for display in (live, PlainProgress(OFF)):
        display.on_note("compiling the fused kernels ...")
        display.on_start(0, 0, 1000)
        display.on_end("done")
    assert "compiling the fused kernels ...\n" in screen.getvalue()
    assert capsys.readouterr().out == "compiling the fused kernels ...\n"


def test_speed_counts_the_newest_updates_only() -> None:
    """Rejects total steps over total time, which is wrong once the speed changes or a run resumes."""
    speed = Speed()
    assert speed.remaining(100) is None
    speed.mark(0.0, 1_000_000)  # a resumed run starts here: its earlier steps took no time of this process
    speed.mark(1.0, 1_000_100)
    assert speed.steps_per_second == 100
    assert speed.remaining(1_000_600) == 5
    for second in range(2, 40):
        speed.mark(float(second), 1_000_100 + 10 * second)
    assert speed.steps_per_second == pytest.approx(10)
    assert speed.remaining(0) == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (float("nan"), "-"),
        (0.0123456, "0.01235"),
        (-21.0, "-21"),
        (500.0, "500.0"),
        (12345.678, "12,345.7"),
    ],
)
def test_numbers_for_people(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.4, "4 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"), (59.7, "1 min 00 s")]
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text
