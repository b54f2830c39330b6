"""Paper trading that learns: promoted by evidence, rolled back by a limit, the same again after kill -9."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailwise.bars.synthetic import random_walk
from tailwise.core.errors import CheckpointError, ConfigError
from tailwise.live.journal import JOURNAL
from tailwise.online.audit import AUDIT, read_audit
from tailwise.online.jobs import AtOnce
from tailwise.online.learner import settings_of
from tailwise.online.settings import LearnSettings
from tailwise.online.window import RecentBars
from tests.live.test_paper import _killed
from tests.online.worlds import RECURRENT, Planted, bars_with, holder, played

pytestmark = pytest.mark.filterwarnings("ignore::tailwise.core.errors.ConfigWarning")  # the runs are far too small
UP, DOWN = 0.004, -0.004


def kinds(folder: Path) -> list[str]:
    return [line["kind"] for line in read_audit(folder / AUDIT)]


def test_without_a_promotion_the_session_is_the_one_that_does_not_learn(tmp_path: Path) -> None:
    """A challenger is trained and contested, none is promoted, and every tick is equal to the last bit. Rejects a
    learner that changes the deployed policy, its account or its random streams."""
    policy = holder(0.5)
    before, more = bars_with(policy, [(300, 0.0)])
    _, _, alone = played(policy, before, more, tmp_path / "alone", worker=None)
    session, beside, ticks = played(policy, before, more, tmp_path / "learns", worker=AtOnce(), patience=60)
    assert beside is not None and beside.learner.deployed.number == 0
    assert {"training", "trained", "contest"} <= set(kinds(tmp_path / "learns"))
    assert "promoted" not in kinds(tmp_path / "learns")
    assert ticks == alone and session.ticks == 301


def test_a_better_challenger_takes_over_and_is_rolled_back(tmp_path: Path) -> None:
    """The deployed policy is short in a rising market; a long challenger is promoted, decides from the next close on,
    and when the market falls it is rolled back at the tick at which it is further behind than the limit."""
    short, long = holder(-0.9), holder(0.9)
    before, more = bars_with(short, [(200, UP), (150, DOWN)])
    _, beside, ticks = played(short, before, more, tmp_path, worker=Planted(lambda _: long), roll_back=0.04)
    lines = {line["kind"]: line for line in reversed(read_audit(tmp_path / AUDIT))}  # the first of each kind
    promoted, back = lines["promoted"], lines["rolled back"]
    assert promoted["why"] == "better" and back["to"] == 0
    assert promoted["n"] - lines["contest"]["n"] == promoted["bars"] > 20
    targets = np.array([tick["desks"][0]["target"][0] for tick in ticks])
    ns = np.array([tick["n"] for tick in ticks])
    assert (targets[ns <= promoted["n"]] < 0).all()  # the decision at the close of that tick was made before
    assert (targets[(ns > promoted["n"]) & (ns <= back["n"])] > 0).all()
    first_day = targets[(ns > back["n"])]
    assert first_day[0] < 0
    size, what = back["why"].split(" ", 1)
    assert beside is not None and 0.04 < float(size) < 0.1 and what.startswith("behind its predecessor")
    assert 200 < back["n"] < 300


def test_the_hidden_state_is_that_of_the_challengers_own_account(tmp_path: Path) -> None:
    """A recurrent challenger goes on from what it saw since it was frozen. Rejects the hidden state of the policy that
    it replaces, and zeros."""
    short, long = holder(-0.9, RECURRENT), holder(0.9, RECURRENT)
    before, more = bars_with(short, [(300, UP)])
    session, beside, _ = played(short, before, more, tmp_path, worker=Planted(lambda _: long), alpha=0.1)
    assert beside is not None and beside.learner._pair is not None and beside.learner.deployed.number == 1
    mine, shadow = session.desks[0].follower.player.hidden()[0], beside.learner._pair[0].hidden()[0][0]
    assert np.allclose(mine.numpy(), shadow.numpy(), atol=0.2)  # accounts differ, and bars are the same
    assert float(np.abs(mine.numpy()).max()) > 0
    old = beside.learner._pair[1].hidden()[0][0]
    assert np.abs(mine.numpy() - old.numpy()).max() > np.abs(mine.numpy() - shadow.numpy()).max()


def test_a_worse_challenger_is_dropped(tmp_path: Path) -> None:
    long, short = holder(0.9), holder(-0.9)
    before, more = bars_with(long, [(400, UP)])
    played(long, before, more, tmp_path, worker=Planted(lambda _: short), patience=100)
    assert "promoted" not in kinds(tmp_path) and kinds(tmp_path).count("dropped") >= 2


def test_caps_hold_for_each_day(tmp_path: Path) -> None:
    """Hourly bars, a training every 3 bars at most once a day: never two on one day."""
    policy = holder(0.5)
    before, more = bars_with(policy, [(150, 0.0)])
    played(policy, before, more, tmp_path, worker=AtOnce(), every=3, patience=2, updates=1, trainings_per_day=1)
    days = [line["time"] // 86_400_000_000_000 for line in read_audit(tmp_path / AUDIT) if line["kind"] == "training"]
    assert len(days) >= 5 and len(set(days)) == len(days)


def test_a_window_that_stands_still_is_not_trained_on(tmp_path: Path) -> None:
    """A stuck feed repeats its price; from the bar on at which that is half of the window, nothing is trained."""
    policy = holder(0.5)
    before, more = bars_with(policy, [(190, 0.0)])
    still = np.full(len(more), more.open[0])
    stuck = replace(more, open=still, high=still, low=still, close=still)
    played(policy, before, stuck, tmp_path, worker=AtOnce(), updates=1, patience=10, still=0.5)
    lines = read_audit(tmp_path / AUDIT)
    assert lines[-1]["kind"] == "not trained" and "did not move" in lines[-1]["why"]


@pytest.mark.parametrize("moments", [4])
def test_kill_9_and_restart_give_the_same_session(moments: int, tmp_path: Path) -> None:
    """Killed at random moments of a session with a promotion and a roll-back: ticks, challengers and audit equal those
    of a session that was left alone. Rejects evidence, caps or hidden states that are lost, and a promotion that is
    in the audit and not in the session."""
    short, long = holder(-0.9), holder(0.9)
    before, more = bars_with(short, [(200, UP), (130, DOWN)])

    def play(folder: Path, speed: float | None = None) -> list[dict[str, Any]]:
        worker = Planted(lambda _: long)
        return played(short, before, more, folder, worker=worker, speed=speed, roll_back=0.04)[2]

    alone = play(tmp_path / "alone")
    assert {"promoted", "rolled back"} <= set(kinds(tmp_path / "alone"))
    dice = random.Random(7)
    folder = tmp_path / "killed"
    for _ in range(moments):
        _killed(lambda: play(folder, 400.0), folder / JOURNAL, dice.randrange(1, 60_000), dice.uniform(0, 0.02))
    assert play(folder) == alone
    assert (folder / AUDIT).read_bytes() == (tmp_path / "alone" / AUDIT).read_bytes()


def test_a_promotion_that_only_the_audit_knows_is_carried_out(tmp_path: Path) -> None:
    """Killed between the audit and the journal: the next start lets the promoted policy decide. Rejects a session that
    goes on with the predecessor."""
    short, long = holder(-0.9), holder(0.9)
    before, more = bars_with(short, [(330, UP)])
    played(short, before, more, tmp_path / "alone", worker=Planted(lambda _: long))
    n = next(line["n"] for line in read_audit(tmp_path / "alone" / AUDIT) if line["kind"] == "promoted")
    lines = (tmp_path / "alone" / JOURNAL).read_bytes().splitlines(keepends=True)
    last = next(
        k for k, line in enumerate(lines) if json.loads(line).get("kind") == "tick" and json.loads(line)["n"] == n
    )
    (tmp_path / "alone" / JOURNAL).write_bytes(b"".join(lines[: last + 1]))
    audit = (tmp_path / "alone" / AUDIT).read_bytes().splitlines(keepends=True)
    kept = [line for line in audit if json.loads(line)["n"] <= n]
    (tmp_path / "alone" / AUDIT).write_bytes(b"".join(kept))
    session, _, ticks = played(short, before, more, tmp_path / "alone", worker=Planted(lambda _: long))
    assert session.trader is not short
    assert ticks[-1]["desks"][0]["target"][0] > 0


def test_a_session_that_learnt_needs_learn_and_an_audit_that_fits(tmp_path: Path) -> None:
    short, long = holder(-0.9), holder(0.9)
    before, more = bars_with(short, [(330, UP)])
    played(short, before, more, tmp_path, worker=Planted(lambda _: long))
    with pytest.raises(CheckpointError, match="go on with --learn"):
        played(short, before, more, tmp_path, worker=None)
    with pytest.raises(CheckpointError, match="were changed"):
        played(short, before, more, tmp_path, worker=Planted(lambda _: long), every=60)


def test_settings_are_checked() -> None:
    assert settings_of(["every=10", "alpha=0.1"]).every == 10
    with pytest.raises(ConfigError, match="lead 10 must be shorter"):
        settings_of(["every=10", "lead=10"])
    with pytest.raises(ConfigError, match="evry"):
        settings_of(["evry=10"])


def test_settings_without_learn_are_refused() -> None:
    """Rejects a setting that is accepted and ignored."""
    from tailwise.cli.live_commands import paper

    with pytest.raises(ConfigError, match="give --learn as well"):
        paper([Path("run")], feed=["-"], learning=["every=10"])


def test_the_page_names_every_setting_and_its_default() -> None:
    """docs/online.md keeps up with the settings."""
    page = (Path(__file__).parents[2] / "docs" / "online.md").read_text(encoding="utf-8")
    for name, field in LearnSettings.model_fields.items():
        assert f"`{name}`" in page, name
        row = next(one for one in page.splitlines() if one.startswith("| `") and f"`{name}`" in one.split("|")[1])
        default = field.default
        assert default is None or any(float(default) == number for number in _numbers(row)), row


def _numbers(row: str) -> list[float]:
    """Numbers in the second cell of a row."""
    return [float(text) for text in row.split("|")[2].replace(",", " ").split() if text[0].isdigit()]


def test_ticks_without_learn_are_not_taken_for_ticks_with_it(tmp_path: Path) -> None:
    """A session that was begun without --learn, and one with a stretch without it in which the learner would have
    trained. Rejects a log that is written afterwards, as if the learner had been there."""
    policy = holder(0.5)
    before, more = bars_with(policy, [(150, 0.0)])

    def play(folder: Path, bars: int, learns: bool) -> None:
        worker = Planted(lambda _: policy) if learns else None
        played(policy, before, more.slice(0, bars), folder, worker=worker, every=40)

    play(tmp_path / "never", 60, False)
    with pytest.raises(CheckpointError, match=r"6[01] ticks were made without --learn"):
        play(tmp_path / "never", 150, True)
    assert not (tmp_path / "never" / AUDIT).exists() and not (tmp_path / "never" / "challengers").exists()
    play(tmp_path / "stretch", 20, True)
    play(tmp_path / "stretch", 100, False)
    noted = (tmp_path / "stretch" / AUDIT).read_bytes()
    with pytest.raises(CheckpointError, match=r"no 'training' of tick .* were made without --learn"):
        play(tmp_path / "stretch", 150, True)
    assert (tmp_path / "stretch" / AUDIT).read_bytes() == noted


def test_changed_settings_are_refused_before_they_matter(tmp_path: Path) -> None:
    """Rejects a log that notices other settings at the next training only."""
    policy = holder(0.5)
    before, more = bars_with(policy, [(30, 0.0)])
    played(policy, before, more.slice(0, 10), tmp_path, worker=AtOnce())
    assert kinds(tmp_path) == ["begun"]
    with pytest.raises(CheckpointError, match=r"alpha 0\.05 then and 0\.2 now"):
        played(policy, before, more, tmp_path, worker=AtOnce(), alpha=0.2)


def test_bars_from_before_a_hole_are_not_in_the_window() -> None:
    """Rejects a window in which months that are missing look like one bar."""
    bars = random_walk(seed=0, length=100)
    frequency, step = bars.frequency, int(bars.frequency.bar_ns)
    times = bars.time.astype("int64")
    early = replace(bars, time=np.where(np.arange(100) < 60, times - 400 * step, times).astype("datetime64[ns]"))
    begin = int(times[-1]) + step
    assert len(RecentBars(bars, begin, 80, frequency).bars()) == 80
    assert len(RecentBars(early, begin, 80, frequency).bars()) == 40
    assert not RecentBars(bars, begin + 400 * step, 80, frequency)._times


def test_newest_bars_since_a_time() -> None:
    bars = random_walk(seed=0, length=100)
    times = bars.time.astype("int64")
    recent = RecentBars(bars, int(times[-1]) + 1, 80, bars.frequency)
    assert len(recent) == 80 and recent.since(int(times[70])) == 30 and recent.since(0) == 80
    assert np.array_equal(recent.bars(30).close, bars.close[70:])
    assert np.array_equal(recent.bars().close, bars.close[20:])
