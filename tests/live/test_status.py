"""The status of a paper session: what the account, the policy and the guards say, and nothing that is older."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from tailwise.core.errors import DataError
from tailwise.live.feeds import BarsFeed
from tailwise.live.lines import Refused
from tailwise.live.paper import Paper
from tailwise.live.status import EVERY, STATUS, SessionStatus, StatusFile, read_status
from tests.live.markets import first_tested, trader_of
from tests.live.test_guards import Said
from tests.live.test_paper import session_of

pytestmark = pytest.mark.filterwarnings("ignore::tailwise.core.errors.ConfigWarning")  # the runs are far too small


def status_in(folder: Path) -> SessionStatus:
    return read_status((folder / STATUS).read_bytes(), source=STATUS)


def always(_: StatusFile) -> bool:
    return True


def test_it_says_what_there_is_at_every_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equity, position, waiting target and predicted law are those of `decide` on the same bars. Rejects a law of the
    close before, one of the hidden state after the decision, and a target that the state of the session has changed."""
    monkeypatch.setattr(StatusFile, "due", always)
    trader = trader_of("lstm")
    bars, since = trader.market().dataset.bars[0], first_tested(trader.market())
    session = session_of(trader, [bars], tmp_path, since=since)
    session.open()
    paper = Paper(session)
    for end in (380, 381):
        paper.run(BarsFeed([bars.slice(0, end)], after=session.time))
        status, decided = status_in(tmp_path), trader.decide(bars.slice(0, end), since=since)
        account, law = status.accounts[0], status.accounts[0].forecast
        assert law is not None and decided.forecast.quantiles is not None
        assert account.equity == decided.equity and account.target == decided.target.tolist()
        assert account.exposure == decided.exposure.tolist()
        assert law.quantiles == decided.forecast.quantiles[0].tolist() and law.cvar == decided.forecast.cvar[0]
        assert status.time == law.time == int(bars.time[end - 1].astype("int64"))
        assert status.open and status.state == "running" and status.ticks == session.ticks
    paper.run(Said([Refused("x")] * 10 + [None]))
    status = status_in(tmp_path)
    assert status.state == "reduce-only" and status.reasons[0].startswith("bad_lines (reduce-only)")
    session.close()
    assert not status_in(tmp_path).open


def test_it_is_written_once_a_second_and_decides_nothing(tmp_path: Path) -> None:
    """A replay at full speed writes it a few times, and its journal is that of a session whose file is always due."""
    trader = trader_of("lstm")
    bars, since = trader.market().dataset.bars[0], first_tested(trader.market())
    ticks = []
    for folder, due in (("seldom", StatusFile.due), ("always", always)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StatusFile, "due", due)
            session = session_of(trader, [bars], tmp_path / folder, since=since)
            session.open()
            Paper(session).run(BarsFeed([bars]))
            session.close()
        lines = [json.loads(line) for line in (tmp_path / folder / "journal.jsonl").read_text().splitlines()]
        ticks.append([one["desks"] for one in lines if one["kind"] == "tick"])
    assert ticks[0] == ticks[1] and len(ticks[0]) > 30
    file = StatusFile(tmp_path)
    assert file.due()
    file.write({})
    assert not file.due() and EVERY >= 1.0


def journal_ends_with_a_state(folder: Path) -> None:
    """Cut the journal behind its newest `state`, as a process does that is killed there."""
    lines = (folder / "journal.jsonl").read_text().splitlines(keepends=True)
    newest = max(k for k, line in enumerate(lines) if json.loads(line)["kind"] == "state")
    (folder / "journal.jsonl").write_text("".join(lines[: newest + 1]))


@pytest.mark.parametrize("cut", [False, True])
def test_a_session_that_continues_says_what_the_newest_tick_said(
    cut: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the journal ends with a state, which holds no target. Rejects a wall time of 0 and a forgotten target
    before the first bar, and a file that stays open when the session ends without one."""
    monkeypatch.setattr(StatusFile, "due", always)
    trader = trader_of("lstm")
    bars, since = trader.market().dataset.bars[0], first_tested(trader.market())
    session = session_of(trader, [bars], tmp_path, since=since)
    session.open()
    Paper(session).run(BarsFeed([bars.slice(0, 400)]))
    session.journal.close()  # killed: nobody closed the session
    if cut:
        journal_ends_with_a_state(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    newest = [one for one in lines if one["kind"] == "tick"][-1]
    assert status_in(tmp_path).open and (lines[-1]["kind"] == "state") is cut
    again = session_of(trader, [bars], tmp_path, since=since)
    again.open()
    again.show_status()
    shown = status_in(tmp_path)
    assert shown.open and shown.wall == newest["wall"] and shown.ticks == newest["n"]
    assert shown.accounts[0].target == newest["desks"][0]["target"] is not None
    assert shown.accounts[0].wanted == newest["desks"][0]["wanted"] is not None
    again.close()
    ended = status_in(tmp_path)
    assert not ended.open and ended.wall == newest["wall"]


def test_a_session_killed_and_ended_before_a_bar_is_not_open(tmp_path: Path) -> None:
    """Rejects a `close` that writes only what its own process had to say."""
    trader = trader_of("lstm")
    bars, since = trader.market().dataset.bars[0], first_tested(trader.market())
    session = session_of(trader, [bars], tmp_path, since=since)
    session.open()
    Paper(session).run(BarsFeed([bars.slice(0, 400)]))
    session.journal.close()
    assert status_in(tmp_path).open
    again = session_of(trader, [bars], tmp_path, since=since)
    again.open()
    again.close()
    assert not status_in(tmp_path).open


def test_a_status_that_cannot_be_written_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder has its name: all ticks are played and in a journal that is synced at the end, and it is said once."""
    monkeypatch.setattr(StatusFile, "due", always)
    (tmp_path / STATUS).mkdir()
    trader = trader_of("lstm")
    bars, since = trader.market().dataset.bars[0], first_tested(trader.market())
    session = session_of(trader, [bars], tmp_path, since=since)
    session.open()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        Paper(session).run(BarsFeed([bars]))
        before = session.journal.syncs
        session.close()
    assert session.ticks > 30 and session.journal.syncs == before + 1
    assert sum("status.json cannot be written" in str(one.message) for one in said) == 1
    assert session.time == int(bars.time[-1].astype("int64"))


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"state": "happy"},
        {"time": 2**63},
        {"wall": None},
        {"accounts": [{}]},
        {"accounts": [{"symbols": "A"}]},
        {"reasons": [1]},
    ],
)
def test_what_no_session_writes_is_refused(change: dict[str, Any]) -> None:
    good: dict[str, Any] = {
        "format": 1,
        "state": "running",
        "reasons": [],
        "ticks": 3,
        "time": 10**18,
        "bar_ns": 60 * 10**9,
        "wall": 1.5,
        "open": True,
        "accounts": [],
    }
    assert read_status(json.dumps(good).encode(), source="x").ticks == 3
    with pytest.raises(DataError):
        read_status(json.dumps({**good, **change}).encode(), source="x")
    with pytest.raises(DataError):
        read_status(json.dumps(good).encode().replace(b"1.5", b"NaN"), source="x")
