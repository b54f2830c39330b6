"""The paper account is the simulator's: on the same bars it decides, holds and is worth what `evaluate` says."""

from __future__ import annotations

import copy
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailwise.bars.bars import Bars
from tailwise.core.errors import CheckpointError, TailwiseError
from tailwise.live.feeds import BarsFeed
from tailwise.live.journal import JOURNAL
from tailwise.live.paper import Beginning, Paper, frequency_of, terms_of, ticks_in
from tailwise.live.session import Session
from tailwise.live.settings import LiveGuards
from tailwise.run.policy import Trader
from tests.live.markets import CASES, first_tested, trader_of

pytestmark = pytest.mark.filterwarnings("ignore::tailwise.core.errors.ConfigWarning")  # the runs are far too small


def session_of(
    trader: Trader, bars: list[Bars], folder: Path, *, since: np.datetime64 | None = None, **guards: Any
) -> Session:
    frequency = frequency_of(trader, bars, None)
    begin = Beginning(None if since is None else f"{since.astype('datetime64[s]')}Z")
    terms = terms_of(trader, [one.symbol for one in bars], frequency, begin, folder)
    return Session(trader, terms, folder, LiveGuards(**guards))


@pytest.mark.parametrize("name", CASES)
def test_paper_is_evaluate_bit_for_bit(name: str, tmp_path: Path) -> None:
    """Targets, equity and units of the whole test window of an evaluation, to the last bit (LEDGER L3). Rejects an
    account with sizes, costs or features of its own, and one that fills at the close that it decided on."""
    trader = trader_of(name)
    world = trader.market()
    bars, since = list(world.dataset.bars), first_tested(world)
    session = session_of(trader, bars, tmp_path, since=since)
    session.open()
    Paper(session).run(BarsFeed(bars))
    session.close()
    ticks = list(ticks_in(tmp_path / JOURNAL))
    for k, path in enumerate(trader.trade("test", market=world)):
        desks = [tick["desks"][k] for tick in ticks]
        assert np.array_equal([one["equity"] for one in desks], path.equity)
        assert np.array_equal([one["target"] for one in desks[:-1]], path.target)
        assert np.array_equal([one["units"] for one in desks[1:]], path.ledger["units"].reshape(len(path), -1))
        assert len(np.unique(path.target, axis=0)) > 1
    assert {tick["state"] for tick in ticks} == {"RUNNING"}


@pytest.mark.parametrize("name", ["mlp", "lstm", "sampled", "guards", "ensemble", "portfolio"])
def test_decide_is_the_last_decision_of_paper(name: str, tmp_path: Path) -> None:
    trader = trader_of(name)
    bars = list(trader.market().dataset.bars)
    since = first_tested(trader.market())
    session = session_of(trader, bars, tmp_path, since=since)
    session.open()
    Paper(session).run(BarsFeed(bars))
    session.close()
    last = list(ticks_in(tmp_path / JOURNAL))[-1]["desks"][0]
    made = trader.decide(bars, since=since)
    assert made.target.tolist() == last["target"] and made.equity == last["equity"]


def _killed(run: Any, journal: Path, more: int, delay: float) -> bool:
    """Run in a child process, killed when the journal has grown by so many bytes, and so many seconds later; whether it
    was still running."""
    before = journal.stat().st_size if journal.exists() else 0
    child = os.fork()
    if child == 0:
        try:
            run()
        finally:
            os._exit(0)
    for _ in range(60_000):
        if journal.exists() and journal.stat().st_size >= before + more:
            break
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


@pytest.mark.parametrize("name", ["mlp", "lstm", "guards", "ensemble", "two symbols", "portfolio"])
def test_kill_9_loses_and_doubles_nothing(name: str, tmp_path: Path) -> None:
    """A session killed at twenty random moments and started again each time has the journal of one that was left alone:
    every tick once, every number the same. Rejects a state without the hidden state, the windows of the features, the
    waiting order, the memory of the guards or the place in the random stream."""
    trader = trader_of(name)
    world = trader.market()
    bars, since = list(world.dataset.bars), first_tested(world)

    def play(folder: Path, speed: float | None) -> None:
        session = session_of(trader, bars, folder, since=since)
        session.state_every = 16  # so that sessions go on from states of their middle
        session.open()
        paper, after = Paper(session), session.time
        if after is None:  # the warm-up at once, however slowly the rest comes
            paper.run(BarsFeed([one.between(None, since) for one in bars]))
            after = session.time
        paper.run(BarsFeed(bars, speed=speed, after=after))
        session.close()

    play(tmp_path / "alone", None)
    dice = random.Random(name)
    folder = tmp_path / "killed"
    places = set()
    for more in (0, 1, *(dice.randrange(1, 2500) for _ in range(18))):  # the first ones while the features warm up
        assert _killed(lambda: play(folder, 200.0), folder / JOURNAL, more, dice.uniform(0.0, 0.02))
        places.add((folder / JOURNAL).stat().st_size if (folder / JOURNAL).exists() else 0)
    play(folder, None)
    assert len(places) >= 15  # at different places, and it went on in between
    assert list(ticks_in(folder / JOURNAL)) == list(ticks_in(tmp_path / "alone" / JOURNAL))


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trader, list[Bars], Path]:
    trader = trader_of("lstm")
    bars = list(trader.market().dataset.bars)
    folder = tmp_path_factory.mktemp("played")
    session = session_of(trader, bars, folder, since=first_tested(trader.market()))
    session.open()
    Paper(session).run(BarsFeed([bars[0].slice(0, 390)]))
    session.close()
    return trader, bars, folder


def test_half_a_line_is_cut_off_and_played_again(played: Any, tmp_path: Path) -> None:
    trader, bars, folder = played
    whole = (folder / JOURNAL).read_bytes()
    for cut in (1, 30, 400):
        (tmp_path / JOURNAL).write_bytes(whole[:-cut])
        session = session_of(trader, bars, tmp_path)
        session.open()
        Paper(session).run(BarsFeed([bars[0].slice(0, 390)]))
        session.close()
        assert list(ticks_in(tmp_path / JOURNAL)) == list(ticks_in(folder / JOURNAL))


def test_another_model_does_not_continue_a_journal(played: Any, tmp_path: Path) -> None:
    """The guard against a mismatch: other weights, other features, other options. Nothing is written."""
    trader, bars, folder = played
    (tmp_path / JOURNAL).write_bytes((folder / JOURNAL).read_bytes())
    before = (tmp_path / JOURNAL).read_bytes()
    for other, words in (("mlp", "another policy"), ("guards", "another policy")):
        with pytest.raises(CheckpointError, match=words):
            session_of(trader_of(other), bars, tmp_path).open()
    frequency = frequency_of(trader, bars, None)
    seeded = terms_of(trader, [bars[0].symbol], frequency, Beginning(seed=5), tmp_path)
    with pytest.raises(CheckpointError, match="another seed"):
        Session(trader, seeded, tmp_path, LiveGuards()).open()
    assert (tmp_path / JOURNAL).read_bytes() == before


@pytest.mark.parametrize(
    ("find", "put", "words"),
    [
        (b'"equity":', b'"equity":1', "says something else than this policy"),
        (b'"kind":"tick"', b'"kind":"tock"', "kind is 'tock'"),
        (b'"n":', b'"n":-', "greater than or equal to 0"),
        (b'"float64"', b'"object"', "is of type 'object'"),
        (b'"target":[', b'"target":[NaN,', "NaN is no JSON number"),
        (b'"data":"', b'"data":"!', "is no base 64"),
    ],
)
def test_a_journal_that_was_changed_is_refused(
    played: Any, tmp_path: Path, find: bytes, put: bytes, words: str
) -> None:
    """Each change is in the newest lines, which are played again. Rejects a journal that is believed."""
    trader, bars, folder = played
    whole = (folder / JOURNAL).read_bytes()
    at = whole.rfind(find)
    assert at > 0
    (tmp_path / JOURNAL).write_bytes(whole[:at] + put + whole[at + len(find) :])
    with pytest.raises(CheckpointError, match=words):
        session_of(trader, bars, tmp_path).open()


def test_any_change_of_a_journal_is_a_sentence_or_changes_nothing(played: Any, tmp_path: Path) -> None:
    """Values anywhere in its newest lines are replaced, removed or repeated. Rejects an error that is none of ours."""
    trader, bars, folder = played
    lines = [json.loads(line) for line in (folder / JOURNAL).read_text(encoding="utf-8").splitlines()]
    newest = max(k for k, line in enumerate(lines) if line["kind"] == "state")
    dice, refused = random.Random(3), 0
    for case in range(120):
        changed = copy.deepcopy(lines)
        at = dice.choice([0, newest, newest, newest + 1, len(changed) - 1])
        damage(dice, changed[at])
        path = tmp_path / str(case)
        path.mkdir()
        (path / JOURNAL).write_text("".join(json.dumps(line) + "\n" for line in changed), encoding="utf-8")
        session = session_of(trader, bars, path) if at else None
        try:
            (session or session_of(trader, bars, path)).open()
        except TailwiseError:
            refused += 1
    assert refused > 60


def damage(dice: random.Random, value: Any) -> None:
    """Change one thing somewhere below."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = dice.choice(keys)
        below = value[key]
        if isinstance(below, dict | list) and below and dice.random() < 0.8:
            value = below
            continue
        odd = [None, -1, 2**62, 1e300, "x", "", [], {}, True, 0, "AAAA", "2001-01-01"]
        if isinstance(value, dict) and dice.random() < 0.2:
            del value[key]
        else:
            value[key] = dice.choice(odd)
        return
