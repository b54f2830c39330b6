"""Reading files that another process writes: torn lines, cut-back files, links that lead out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

import pytest

from tailwise.core.parsing import parse_json
from tailwise.watch import files
from tailwise.watch import history as history_module
from tailwise.watch.files import CHUNK, LONGEST_LINE, Tail, inside, last_row, open_inside
from tailwise.watch.history import History, Position
from tailwise.watch.runs import RunEntry, find_runs
from tests.watch.watched_runs import alert, line, write_run


def entry(folder: Path) -> RunEntry:
    return RunEntry("id", folder.name, folder.resolve())


def test_names_are_those_of_the_run_folder() -> None:
    from tailwise.evaluate import judge as judging
    from tailwise.evaluate import path_files
    from tailwise.run import metric_store, run_folder
    from tailwise.run.health.rule import Severity

    assert (files.CONFIG, files.ALERTS) == (run_folder.CONFIG, run_folder.ALERTS)
    assert (files.METRICS, files.METRICS_TABLE) == (metric_store.FILE, metric_store.TABLE)
    assert get_args(Severity) == files.SEVERITIES
    assert (files.EQUITY, files.SUMMARY) == (path_files.EQUITY, judging.SUMMARY)


def test_a_torn_last_line_waits_until_it_is_whole(tmp_path: Path) -> None:
    """Rejects a reader that parses whatever is there: the half line would be lost, or raise."""
    path, whole = tmp_path / "metrics.jsonl", line(2)
    path.write_text(line(1) + whole[:20])
    tail = Tail(tmp_path, "metrics.jsonl")
    assert [row["update"] for row in tail.poll().rows] == [1]
    assert tail.poll().rows == []
    with open(path, "a") as file:
        file.write(whole[20:])
    assert [row["update"] for row in tail.poll().rows] == [2]
    assert tail.bad_lines == 0


def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(line(1))
    tail = Tail(tmp_path, "metrics.jsonl")
    tail.poll()
    with open(path, "a") as file:
        file.write(line(2) + line(3))
    news = tail.poll()
    assert [row["update"] for row in news.rows] == [2, 3]
    assert not news.reset


def test_a_file_that_was_cut_back_is_read_again(tmp_path: Path) -> None:
    """Replaced (as `cut_back` does) and rewritten in place; a reader that only looks at the size misses the second."""
    path = tmp_path / "metrics.jsonl"
    path.write_text(line(1) + line(2) + line(3))
    tail = Tail(tmp_path, "metrics.jsonl")
    tail.poll()
    other = tmp_path / "new"
    other.write_text(line(1))
    os.replace(other, path)
    news = tail.poll()
    assert news.reset
    assert [row["update"] for row in news.rows] == [1]
    with open(path, "r+") as file:  # the same inode, as long or longer, with another past
        file.truncate(0)
        file.write(line(9) + line(10) + line(11) + line(12))
    news = tail.poll()
    assert news.reset
    assert [row["update"] for row in news.rows] == [9, 10, 11, 12]
    path.unlink()
    assert tail.poll().reset


def test_lines_that_are_no_rows_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"update": 1}\nnot json\n[1]\n{"update": "x"}\n\xff\xfe\n' + b"x" * (LONGEST_LINE + 5))
    tail = Tail(tmp_path, "metrics.jsonl")
    assert [row["update"] for row in tail.poll().rows] == [1]
    assert tail.bad_lines == 5
    with open(path, "ab") as file:
        file.write(b'y\n{"update": 2}\n')
    assert [row["update"] for row in tail.poll().rows] == [2]
    assert CHUNK > LONGEST_LINE
    assert last_row(tmp_path, "metrics.jsonl", window=100) == {"update": 2}
    assert last_row(tmp_path, "nothing.jsonl") is None


def test_links_out_of_the_folder_and_pipes_are_not_read(tmp_path: Path) -> None:
    outside = tmp_path / "secret.txt"
    outside.write_text("secret")
    run = write_run(tmp_path / "runs" / "a").resolve()
    (run / "alerts.jsonl").symlink_to(outside)
    os.mkfifo(run / "pipe")
    (run / "loop").symlink_to(run / "loop")
    assert inside(run, "alerts.jsonl") is None
    assert inside(run, "..", "..", "secret.txt") is None
    assert inside(run, str(outside)) is None
    assert inside(run, "a\0b") is None
    assert inside(run, "loop") is None
    assert open_inside(run, "pipe") is None  # would block for ever
    with open_inside(run, "config.yaml") as file:  # type: ignore[union-attr]
        assert file.read(4) == b"seed"
    write_run(tmp_path / "elsewhere")
    run.rename(run.with_name("moved"))
    run.symlink_to(tmp_path / "elsewhere")  # the folder itself leads out now
    assert open_inside(run, "config.yaml") is None


def test_runs_are_found_and_links_out_of_the_root_are_not_followed(tmp_path: Path) -> None:
    elsewhere = write_run(tmp_path / "elsewhere" / "hidden")
    root = tmp_path / "runs"
    write_run(root / "a")
    write_run(root / "frontier" / "limit" / "seed-1")
    (root / "link").symlink_to(elsewhere)
    (root / "inner").symlink_to(root / "a")
    found = find_runs([root.resolve()])
    assert [run.name for run in found.values()] == ["a", "frontier/limit/seed-1"]
    assert next(iter(find_runs([elsewhere.resolve()]).values())).name == "hidden"  # a run itself may be given


def test_a_listener_gets_everything_once_and_then_what_is_new(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", 3)
    history = History(entry(run))
    assert history.poll()
    first, position = history.since(Position()), history.position
    assert first is not None and '"update":[1,2,3]' in first and '"reset":true' in first
    assert history.since(position) is None
    with open(run / "metrics.jsonl", "a") as file:
        file.write(line(4, episode__return=float(4)))
    (run / "alerts.jsonl").write_text(alert(4))
    assert history.poll()
    second = history.since(position)
    assert second is not None and '"update":[4]' in second and '"reset":false' in second
    assert "planted evidence" in second
    assert not history.poll()


def test_a_long_history_is_thinned_and_its_end_is_always_the_newest(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", 1)
    count = 3 * history_module.MOST_POINTS
    (run / "metrics.jsonl").write_text("".join(line(k, episode__return=float(k)) for k in range(1, count + 1)))
    history = History(entry(run))
    history.poll()
    assert history_module.MOST_POINTS / 2 <= len(history.rows) <= history_module.MOST_POINTS
    assert history.latest["update"] == count
    assert history.rows[0]["update"] == 1
    assert count - history.rows[-1]["update"] < 8
    era = history.era
    with open(run / "metrics.jsonl", "a") as file:
        file.write(line(count + 1) + line(count + 2) + line(count + 3) + line(count + 4))
    history.poll()
    assert history.era == era
    assert history.rows[-1]["update"] >= count


def test_values_of_the_wrong_kind_are_left_out(tmp_path: Path) -> None:
    """A row that parses and is nonsense must not end the reader."""
    run = write_run(tmp_path / "a", 1)
    nonsense = '{"update": 2, "steps": "x", "policy/kl": "y", "policy/entropy": [1], "critic/loss": {}}'
    (run / "metrics.jsonl").write_text(line(1) + nonsense + "\n")
    (run / "alerts.jsonl").write_text('{"update": 2, "rule": [1], "event": 3, "action": {"a": 1}}\n')
    folder = run / "evaluations" / "x"
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text('{"symbols": [3, {"statistics": [1]}, {"statistics": {"a": 1}}]}')
    history = History(entry(run))
    assert history.poll()
    told = history.since(Position())
    assert told is not None and '"policy/kl":[0.01,null]' in told
    assert history._evaluation._statistics("x") == []


@pytest.mark.parametrize(
    "value",
    ["NaN", "Infinity", "-Infinity", "1e999", "9" * 400, "9" * 5000, "[" * 5000 + "]" * 5000, '"\\ud800"'],
)
@pytest.mark.parametrize("name", ["update", "steps", "policy/kl", "a"])
def test_a_line_that_is_not_json_is_counted_and_the_others_are_read(tmp_path: Path, name: str, value: str) -> None:
    """Rejects `json.loads`, which takes most of these: they end the reader, the list, or the page's own parser."""
    run = write_run(tmp_path / "a", 1)
    row = f'{{"update": 2, "{name}": {value}}}' if name != "update" else f'{{"update": {value}, "x": 1}}'
    (run / "metrics.jsonl").write_text(line(1) + row + "\n" + line(3))
    (run / "alerts.jsonl").write_text(row + "\n" + alert(3))
    history = History(entry(run))
    assert history.poll()
    told = history.since(Position())
    assert told is not None
    parsed = parse_json(told, what="news", max_bytes=2**20)
    assert (parsed["update"], parsed["bad_lines"], len(parsed["alerts"])) == ([1, 3], 2, 1)


def test_a_whole_number_that_a_browser_cannot_hold_is_no_count(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", 1)
    rows = (f'{{"update": 2, "steps": {2**53}}}', f'{{"update": {2**53}}}', '{"update": -1}', '{"update": true}')
    (run / "metrics.jsonl").write_text("".join(f"{row}\n" for row in rows))
    history = History(entry(run))
    history.poll()
    assert [(row["update"], row["steps"]) for row in history.rows] == [(2, None)]


def test_a_long_file_is_read_in_parts(tmp_path: Path) -> None:
    """Rejects a poll that goes on until the end of the file: a file of any size would hold a thread for good."""
    run = write_run(tmp_path / "a", 1)
    filler = f'{{"update": 1, "x": "{"y" * (LONGEST_LINE - 100)}"}}\n'
    with open(run / "metrics.jsonl", "w") as file:
        for _ in range(history_module.MOST_CHUNKS * CHUNK // LONGEST_LINE + 8):
            file.write(filler)
        file.write(line(2))
    history = History(entry(run))
    history.poll()
    assert history.behind and history.latest["update"] == 1
    history.poll()
    assert not history.behind and history.latest["update"] == 2


def test_an_entry_that_cannot_be_looked_at_hides_no_run(tmp_path: Path) -> None:
    """Rejects one `try` around a folder: a link to itself made all runs beside it vanish."""
    root = tmp_path / "runs"
    write_run(root / "a")
    (root / "loop").symlink_to(root / "loop")
    (root / "nowhere").symlink_to(tmp_path / "nowhere")
    os.mkfifo(root / "pipe")
    (root / os.fsdecode(b"\xff")).mkdir()
    for k in range(60):
        (root / "0" / str(k)).mkdir(parents=True)
    write_run(root / "z")
    assert [run.name for run in find_runs([root.resolve()]).values()] == ["a", "z"]


def test_texts_of_listeners_at_the_same_place_are_shared(tmp_path: Path) -> None:
    history = History(entry(write_run(tmp_path / "a", 3)))
    history.poll()
    assert history.since(Position()) is history.since(Position())
