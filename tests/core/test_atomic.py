"""A reader finds the old content or the new, never a part, whatever happens to the writer."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tailwise.core import atomic
from tailwise.core.errors import DataError


def content(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def killed(script: str, *arguments: str) -> None:
    """Run a script in its own process, which must end itself with SIGKILL."""
    done = subprocess.run([sys.executable, "-c", script, *arguments], timeout=60, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def test_files_are_written_replaced_and_leave_nothing_beside(tmp_path: Path) -> None:
    atomic.write_bytes(tmp_path / "a", b"\x00\x01")
    atomic.write_text(tmp_path / "b", "größe")
    atomic.write_json(tmp_path / "c", {"x": [1, None]})
    atomic.write_text(tmp_path / "b", "new")
    assert (tmp_path / "a").read_bytes() == b"\x00\x01"
    assert (tmp_path / "b").read_text("utf-8") == "new"
    assert json.loads((tmp_path / "c").read_text()) == {"x": [1, None]}
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, b"x"])
def test_what_is_no_json_is_refused_and_the_old_file_stays(tmp_path: Path, value: object) -> None:
    path = tmp_path / "m.json"
    atomic.write_json(path, {"x": 1})
    with pytest.raises(DataError, match=r"m\.json.*JSON"):
        atomic.write_json(path, {"x": value})
    assert json.loads(path.read_text()) == {"x": 1}
    assert os.listdir(tmp_path) == ["m.json"]


def test_a_failed_rename_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        atomic.write_bytes(tmp_path / "taken", b"x")
    assert os.listdir(tmp_path) == ["taken"]


def test_folder_appears_whole_and_only_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints" / "c1"
    with atomic.atomic_folder(path) as folder:
        (folder / "policy").mkdir()
        (folder / "policy" / "w").write_text("1")
        assert not path.exists()
        assert folder.parent == path.parent  # a rename is atomic only within one file system
    assert content(path) == {"policy/w": "1"}
    assert os.listdir(path.parent) == ["c1"]


def test_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """Rejects a replacement that copies over the old folder: a file of the old one would remain."""
    path = tmp_path / "best"
    for name in ("old", "new"):
        with atomic.atomic_folder(path) as folder:
            (folder / name).write_text(name)
    assert content(path) == {"new": "new"}
    assert os.listdir(tmp_path) == ["best"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_while_filling_leaves_the_old_folder_whole(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "best"
    with atomic.atomic_folder(path) as folder:
        (folder / "w").write_text("old")

    def fill_and_fail() -> None:
        with atomic.atomic_folder(path) as folder:
            (folder / "w").write_text("half")
            raise error("planted")

    with pytest.raises(error, match="planted"):
        fill_and_fail()
    assert content(path) == {"w": "old"}
    assert os.listdir(tmp_path) == ["best"]


KILL_WHILE_FILLING = """
import os, signal, sys
from tailwise.core.atomic import atomic_folder
with atomic_folder(sys.argv[1]) as folder:
    (folder / "w").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_kill_while_filling_leaves_the_old_folder_and_a_leftover_that_can_be_removed(tmp_path: Path) -> None:
    path = tmp_path / "best"
    with atomic.atomic_folder(path) as folder:
        (folder / "w").write_text("old")
    killed(KILL_WHILE_FILLING, str(path))
    assert content(path) == {"w": "old"}
    removed = atomic.remove_leftovers(tmp_path)
    assert len(removed) == 1
    assert removed[0].name.startswith(".best.tmp-")
    assert os.listdir(tmp_path) == ["best"]


# The n-th rename is where the process dies: before it, or just after it.
KILL_AT_RENAME = """
import os, signal, sys
from tailwise.core.atomic import atomic_folder
path, fatal, when = sys.argv[1], int(sys.argv[2]), sys.argv[3]
count, rename = 0, os.rename
def dying_rename(source, target):
    global count
    count += 1
    if count == fatal and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    rename(source, target)
    if count == fatal:
        os.kill(os.getpid(), signal.SIGKILL)
os.rename = dying_rename
with atomic_folder(path) as folder:
    (folder / "w").write_text("new")
"""


@pytest.mark.parametrize(
    ("fatal", "when", "survivor", "put_back"),
    [("1", "before", "old", False), ("1", "after", "old", True), ("2", "after", "new", False)],
)
def test_kill_during_the_replacement_loses_nothing(
    tmp_path: Path, fatal: str, when: str, survivor: str, put_back: bool
) -> None:
    """Rejects remove-then-rename, after which a kill between the two leaves no folder at all."""
    path = tmp_path / "best"
    with atomic.atomic_folder(path) as folder:
        (folder / "w").write_text("old")
    killed(KILL_AT_RENAME, str(path), fatal, when)
    assert atomic.recover_folder(path) is put_back
    assert content(path) == {"w": survivor}
    atomic.remove_leftovers(tmp_path)
    assert os.listdir(tmp_path) == ["best"]
    with atomic.atomic_folder(path) as folder:  # and the next replacement works as ever
        (folder / "w").write_text("next")
    assert content(path) == {"w": "next"}


FAIL_AT_SECOND_RENAME = """
import os, sys
from tailwise.core.atomic import atomic_folder
count, rename = 0, os.rename
def failing_rename(source, target):
    global count
    count += 1
    if count == 2:
        raise OSError("the disk is gone")
    rename(source, target)
os.rename = failing_rename
with atomic_folder(sys.argv[1]) as folder:
    (folder / "w").write_text("new")
"""


def test_a_replacement_that_fails_half_way_is_undone_at_once(tmp_path: Path) -> None:
    path = tmp_path / "best"
    with atomic.atomic_folder(path) as folder:
        (folder / "w").write_text("old")
    script = [sys.executable, "-c", FAIL_AT_SECOND_RENAME, str(path)]
    done = subprocess.run(script, timeout=60, check=False, capture_output=True, text=True)
    assert "OSError: the disk is gone" in done.stderr
    assert content(path) == {"w": "old"}
    assert os.listdir(tmp_path) == ["best"]


def test_sha256_of_a_file(tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000
    (tmp_path / "f").write_bytes(data)
    assert atomic.sha256_file(tmp_path / "f") == hashlib.sha256(data).hexdigest()
    assert atomic.sha256_file(tmp_path / "f") != hashlib.sha256(data[:-1]).hexdigest()


READ_FOR_EVER = """
import sys, time
from pathlib import Path
from tailwise.core.atomic import recover_folder
print("reading", flush=True)
while True:
    recover_folder(sys.argv[1])
"""


def test_a_reader_that_repairs_does_not_disturb_a_living_writer(tmp_path: Path) -> None:
    """`best` is replaced while `evaluate`, `watch` and `runs list` look at it, and each of them may come between the
    two renames. Rejects a writer that fails because a reader put the old folder back, or removed it first."""
    path = tmp_path / "best"
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", READ_FOR_EVER, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    try:
        for reader in readers:
            assert reader.stdout is not None and reader.stdout.readline() == b"reading\n"
        for number in range(300):
            with atomic.atomic_folder(path) as folder:
                for name in ("a", "b", "c"):
                    (folder / name).write_text(str(number))
            assert content(path) == {name: str(number) for name in ("a", "b", "c")}
        assert [reader.poll() for reader in readers] == [None, None], [reader.stderr for reader in readers]
    finally:
        for reader in readers:
            reader.kill()
            reader.communicate()
