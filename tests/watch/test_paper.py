"""The paper session on the page: read as it grows, bounded, whatever its files say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tailwise.live.journal import JOURNAL
from tailwise.live.status import STATUS
from tailwise.watch.paper import FOLDER, MOST_ACCOUNTS, MOST_POINTS, PaperReader

NS = 1_000_000_000


def tick(n: int, *equities: float | None) -> str:
    desks = [None if one is None else {"equity": one, "target": [one / 1e5 - 1.0]} for one in equities]
    return json.dumps({"kind": "tick", "n": n, "time": n * 60 * NS, "desks": desks}) + "\n"


def account(symbol: str = "A", **more: Any) -> dict[str, Any]:
    law = {"time": 60 * NS, "mean": 0.01, "horizon": 300, "alpha": 0.05, "cvar": -0.04, "limit": -0.05}
    plain = {"symbols": [symbol], "equity": 1e5, "exposure": [0.5], "units": [10.0], "wanted": [1.0], "target": [0.5]}
    return {**plain, "guards": [], "forecast": {**law, "levels": [0.25, 0.75], "quantiles": [-0.1, 0.2]}, **more}


def write_status(folder: Path, accounts: int = 1, **more: Any) -> None:
    plain = {"format": 1, "state": "running", "reasons": [], "ticks": 3, "time": 60 * NS, "bar_ns": 60 * NS}
    value = {**plain, "wall": 12.5, "open": True, "accounts": [account()] * accounts, **more}
    (folder / FOLDER / STATUS).write_text(json.dumps(value))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / FOLDER).mkdir()
    return tmp_path.resolve()


def append(run: Path, text: str) -> None:
    with open(run / FOLDER / JOURNAL, "a") as file:
        file.write(text)


def test_a_session_is_followed_as_it_grows(run: Path) -> None:
    """Rejects half a line that is read, ticks that are read twice, and an account without a bar that is left out."""
    reader = PaperReader(run)
    assert reader.poll() is None  # nothing yet
    append(run, '{"kind": "begin"}\n' + tick(1, 100_000.0, None) + tick(2, 100_500.0, 90_000.0)[:-9])
    assert reader.poll() is None  # no status yet
    write_status(run, 2)
    session = reader.poll()
    assert session is not None and session["times"] == [60_000]
    assert [one["equity"] for one in session["curves"]] == [[100_000.0], [None]]
    assert reader.poll() is None  # nothing new
    append(run, tick(2, 100_500.0, 90_000.0)[-9:] + '{"kind": "event"}\n')
    session = reader.poll()
    assert session is not None and session["times"] == [60_000, 120_000] and session["bad_lines"] == 0
    assert [one["equity"] for one in session["curves"]] == [[100_000.0, 100_500.0], [None, 90_000.0]]
    assert session["curves"][0]["target"] == [[0.0, pytest.approx(0.005)]]
    assert session["accounts"][0]["forecast"]["time"] == 60_000 and session["wall"] == 12.5
    (run / FOLDER / JOURNAL).write_text(tick(7, 1.0))  # another session in the folder
    session = reader.poll()
    assert session is not None and session["times"] == [7 * 60_000]


def test_a_long_session_is_thinned(run: Path) -> None:
    write_status(run)
    append(run, "".join(tick(n, 1e5 + n) for n in range(1, 3001)))
    session = PaperReader(run).poll()
    assert session is not None and 300 < len(session["times"]) <= MOST_POINTS
    steps = {b - a for a, b in zip(session["times"], session["times"][1:], strict=False)}
    assert len(steps) == 1  # evenly
    assert session["curves"][0]["equity"][1] == 1e5 + session["times"][1] / 60_000


@pytest.mark.parametrize(
    "line",
    [
        "{", "[]", "7", "NaN", '{"kind": 3}', '{"kind": "tick"}', '{"kind": "tick", "time": "x", "desks": []}',
        '{"kind": "tick", "time": 1e300, "desks": []}', '{"kind": "tick", "time": 99999999999999999999, "desks": []}',
        '{"kind": "tick", "time": 60000000000, "desks": 4}', "{" * 5000,
    ],
)  # fmt: off
def test_a_line_that_is_none_is_counted(run: Path, line: str) -> None:
    write_status(run)
    append(run, line + "\n" + tick(2, 5.0))
    session = PaperReader(run).poll()
    assert session is not None and session["times"] == [120_000] and session["bad_lines"] == 1


def test_odd_values_become_none_and_lists_are_cut(run: Path) -> None:
    write_status(run, 3 * MOST_ACCOUNTS, reasons=["x" * 10_000] * 100)
    desks = [{"equity": "1", "target": None}, 4, {"equity": 1e308, "target": [None, "y", 1.0]}] * 50
    append(run, json.dumps({"kind": "tick", "time": 0, "desks": desks}) + "\n")
    session = PaperReader(run).poll()
    assert session is not None and len(session["accounts"]) == len(session["curves"]) == MOST_ACCOUNTS
    assert session["curves"][0]["equity"] == [None] and session["curves"][1]["equity"] == [None]
    assert session["curves"][2]["target"] == [[None], [None], [1.0]]
    assert len(session["reasons"]) == 20 and max(map(len, session["reasons"])) == 1000
    json.dumps(session, allow_nan=False)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": 1}', "x" * 2_000_000])
def test_a_status_that_no_session_writes_shows_nothing(run: Path, text: str) -> None:
    (run / FOLDER / STATUS).write_text(text)
    append(run, tick(1, 5.0))
    assert PaperReader(run).poll() is None


def test_a_link_out_of_the_run_is_not_followed(run: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / FOLDER).mkdir()
    write_status(elsewhere)
    (run / FOLDER / STATUS).symlink_to(elsewhere / FOLDER / STATUS)
    assert PaperReader(run).poll() is None
