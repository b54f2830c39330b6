"""`tailwise paper`: opens the feed, runs the session, prints."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tailwise.bars.bars import Bars
from tailwise.cli.live import Opened
from tailwise.cli.output import CHECK_FAILED, DONE, INTERRUPTED, note, print_json
from tailwise.core.errors import ConfigError
from tailwise.evaluate.opened_run import Team, open_team
from tailwise.live.bar_files import named_files, read_as, read_bars
from tailwise.live.feeds import BarsFeed, Feed, FileFeed, ParquetFeed, StreamFeed
from tailwise.live.paper import Beginning, Paper, frequency_of, guards_of, summary_of, terms_of
from tailwise.live.session import Session, Terms, Ticked
from tailwise.live.states import State
from tailwise.run.config import Config
from tailwise.run.decide import Decider, doubts_of, market_of
from tailwise.run.decision import show
from tailwise.run.lock import RunLock

if TYPE_CHECKING:
    from tailwise.online.learner import Learning

FOLDER = "paper"
_LINES = (".jsonl", ".json")
_PARQUET = (".parquet", ".pq")


@dataclass(frozen=True)
class Source:
    """Where bars come from: `-`, files, or an exchange; see docs/commands/paper.md."""

    feeds: list[str]
    history: list[str] = field(default_factory=list)
    follow: bool = False
    speed: float | None = None
    periods_per_year: float | None = None


def run_paper(
    opened: Opened,
    source: Source,
    beginning: Beginning,
    *,
    out: Path | None,
    guards: list[str],
    learning: list[str] | None,
    acknowledge: list[str],
    as_json: bool,
    quiet: bool,
) -> int:
    """Run the session until its feed ends, it is stopped, or Ctrl-C; the exit code. learning: settings of online
    learning, None without it."""
    team = open_team(opened.runs, checkpoint=opened.checkpoint, ensemble=opened.ensemble, trust=opened.trust)
    for sentence in team.notes:
        note(f"note: {sentence}")
    folder = team.run / FOLDER if out is None else out
    history = read_bars(team.trader, source.history) if source.history else []
    symbols, feed, replayed = _feed(team.trader, source)
    frequency = frequency_of(team.trader, history or replayed, source.periods_per_year)
    lock = RunLock(folder)
    with lock.held():
        begun = _after_history(beginning, history, folder)
        terms = terms_of(team.trader, symbols, frequency, begun, folder, run=str(team.run), checkpoint=team.name)
        beside = None
        if learning is not None:
            before = history or list(team.trader.market().dataset.bars)
            beside = _learning(team, terms, folder, learning, before, opened, feed)
        find = None if beside is None else beside.learner.find
        session = Session(team.trader, terms, folder, guards_of(guards), deployed=find)
        known = session.open(acknowledge)
        for sentence in [] if known else doubts_of(team.trader, symbols, since=begun.since, trades=True):
            note(f"note: {sentence}")
        silent = as_json or quiet
        tell = _say_nothing if silent else Teller(session).tell

        def told(tick: Ticked) -> None:
            tell(tick)
            for sentence in () if beside is None else beside.after(session):
                if not silent:
                    print(sentence, flush=True)

        playing = Paper(session, told=told)
        if not quiet and not as_json:
            print(f"{folder}: {'continued after' if known else 'begun,'} {known:,} ticks; no real order is ever sent")
        interrupted = False
        try:
            if beside is not None:
                beside.go_on(session)
            if not known:
                playing.warm_up(history)
            if session.time is not None:
                feed.go_on_after(session.time)
            playing.run(feed)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            session.close()
            if beside is not None:
                beside.learner.worker.close()
    summary = summary_of(playing, team)
    if beside is not None:
        summary["learning"] = beside.summary()
    if as_json:
        print_json(summary)
    else:
        for line in _closing(summary):
            print(line)
    if interrupted:
        return INTERRUPTED
    return CHECK_FAILED if session.machine.state is State.STOPPED else DONE


def _learning(
    team: Team,
    terms: Terms,
    folder: Path,
    overrides: list[str],
    before: list[Bars],
    opened: Opened,
    feed: Feed,
) -> Learning:
    """Online learning beside the session of a folder; before: bars from before."""
    from tailwise.online.jobs import Aside, AtOnce
    from tailwise.online.learner import Learner, Learning, settings_of

    settings = settings_of(overrides)
    worker = Aside() if feed.live else AtOnce()  # a replay has nothing else to do meanwhile
    return Learning(Learner(team.trader, terms, folder, settings, before, worker, trust=opened.trust))


def _after_history(beginning: Beginning, history: list[Bars], folder: Path) -> Beginning:
    """Trading begins after the bars from before, unless something else is said or was said when the session began."""
    from tailwise.live.journal import JOURNAL

    if beginning.since is not None or not history or (folder / JOURNAL).exists():
        return beginning
    last = max(one.time[-1] + one.frequency.bar for one in history)
    return Beginning(f"{last.astype('datetime64[s]')}Z", beginning.deterministic, beginning.seed)


def _feed(trader: Decider, source: Source) -> tuple[list[str], Feed, list[Bars]]:
    """Symbols, the feed, and the bars of one that is there already."""
    _, spec = market_of(trader)
    known = list(spec.windows)
    if not source.feeds:
        raise ConfigError("--feed is missing: - for JSON lines on standard input, a file, or ccxt:...")
    if len(source.feeds) == 1 and source.feeds[0] == "-":
        return known, StreamFeed(sys.stdin.fileno(), tuple(known)), []
    if any(text.startswith("ccxt:") for text in source.feeds):
        return _exchange(trader.config, source, known)
    if len(source.feeds) == 1 and Path(source.feeds[0]).suffix.lower() in _LINES:
        path = Path(source.feeds[0])
        return known, FileFeed(path, tuple(known), follow=source.follow, speed=source.speed), []
    files = named_files(source.feeds, known)
    order = [name for name in known if name in files] + [name for name in files if name not in known]
    if not source.follow:
        bars = [read_as(trader.config, files[name], name) for name in order]
        return order, BarsFeed(bars, speed=source.speed), bars
    if len(order) > 1:
        raise ConfigError("one file is followed at a time; write several symbols into one, with a column symbol.")
    name, path = order[0], files[order[0]]
    if path.suffix.lower() in _PARQUET:
        return [name], ParquetFeed(path, lambda: read_as(trader.config, path, name)), []
    return [name], FileFeed(path, (name,), symbol=name, follow=True, speed=source.speed), []


def _exchange(config: Config, source: Source, known: list[str]) -> tuple[list[str], Feed, list[Bars]]:
    from tailwise.live.exchange_feed import ExchangeFeed, place_of

    if len(source.feeds) > 1 or len(known) > 1:
        raise ConfigError("candles of an exchange are followed for one symbol; give one ccxt: feed.")
    return known, ExchangeFeed(place_of(source.feeds[0]), known[0]), []


def _say_nothing(_: Ticked) -> None:
    return None


class Teller:
    """Prints a line whenever a target or the state changes."""

    def __init__(self, session: Session) -> None:
        self._session, self._before = session, ""

    def tell(self, tick: Ticked) -> None:
        """After a tick."""
        held = [
            f"{'+'.join(desk.symbols)} {', '.join(f'{one:+.2f}' for one in placed.target)}"
            for desk, placed in zip(self._session.desks, tick.placed, strict=True)
            if placed is not None
        ]
        if not held:
            return
        news = f"{tick.state.word}: target {'; '.join(held)}"
        if news != self._before:
            from numpy import datetime64

            equity = ", ".join(f"{one:,.2f}" for one in tick.equity)
            print(f"{show(datetime64(tick.time, 'ns'))} {news}, equity {equity}", flush=True)
        self._before = news


def _closing(summary: dict[str, object]) -> list[str]:
    lines = [
        f"{summary['state']}, {summary['ticks']:,} ticks, newest bar {summary['newest'] or 'none'}; "
        f"{summary['bars']:,} bars taken, {summary['refused']:,} lines refused, {summary['late']:,} late, "
        f"{summary['filled']:,} filled from history"
    ]
    accounts = summary["accounts"]
    assert isinstance(accounts, list)
    for one in accounts:
        held = ", ".join(f"{exposure:+.2f}" for exposure in one["exposure"])
        lines.append(f"{' + '.join(one['symbols'])}: equity {one['equity']:,.2f}, exposure {held}")
    learning = summary.get("learning")
    if isinstance(learning, dict):
        counts = ", ".join(f"{count} {kind}" for kind, count in learning["counts"].items()) or "nothing happened"
        lines.append(
            f"online learning: challenger {learning['deployed']} decides"
            if learning["deployed"]
            else "online learning: the policy of the run decides"
        )
        lines[-1] += f"; {counts}; {learning['audit']}"
    reasons = summary["reasons"]
    assert isinstance(reasons, list)
    return lines + reasons
