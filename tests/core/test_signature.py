"""Signatures: whose files these are. Every wrong key, changed file and broken signature is somebody else's."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tailwise.core.errors import ConfigError
from tailwise.core.signature import FILE, key_path, origin_of, sign

DIGESTS = {"a.yaml": "0" * 64, "b.json": "1" * 64}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def signed(folder: Path, kind: str = "run") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / FILE).write_bytes(sign(kind, DIGESTS))
    return folder


def test_what_this_user_signed_is_own(home: Path) -> None:
    folder = signed(home / "run")
    assert origin_of(folder, "run", DIGESTS).own
    assert origin_of(folder, "run", dict(reversed(DIGESTS.items()))).own  # the order of names says nothing


def test_the_key_is_made_once_for_this_user_alone(home: Path) -> None:
    signed(home / "run")
    path = key_path()
    assert path == home / "config" / "tailwise" / "key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and path.stat().st_size == 65
    before = path.read_bytes()
    signed(home / "other")
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["key"]
    assert before.strip() not in (home / "run" / FILE).read_bytes()


def test_processes_that_start_at_once_share_one_key(home: Path) -> None:
    """Rejects a key that is written over by whoever comes second: what the first one signed would be a stranger's."""
    code = "from tailwise.core.signature import sign; import sys; sys.stdin.read(1); print(sign('run', {}).decode())"
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    answers = {process.communicate("x", timeout=60)[0] for process in processes}
    assert len(answers) == 1 and json.loads(answers.pop())["hmac"]


def test_looking_at_a_run_makes_no_key(home: Path) -> None:
    folder = signed(home / "run")
    key_path().unlink()
    assert "another key" in origin_of(folder, "run", DIGESTS).reason
    assert not key_path().exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda stored: None, "carries no signature"),
        (lambda stored: b"{", "cannot be read"),
        (lambda stored: b"[" * 3000, "cannot be read"),
        (lambda stored: b"[]", "holds no signature"),
        (lambda stored: b"{}" + b" " * 5000, "cannot be read"),
        (lambda stored: json.dumps({**stored, "hmac": 3}).encode(), "holds no signature"),
        (lambda stored: json.dumps({**stored, "hmac": "0" * 64}).encode(), "was changed after it was signed"),
        (lambda stored: json.dumps({**stored, "hmac": "ü"}).encode(), "was changed after it was signed"),
        (lambda stored: json.dumps({**stored, "key": "0" * 16}).encode(), "another key"),
    ],
)
def test_broken_signatures_are_no_signatures(home: Path, change: object, reason: str) -> None:
    folder = signed(home / "run")
    content = change(json.loads((folder / FILE).read_bytes()))  # type: ignore[operator]
    (folder / FILE).unlink()
    if content is not None:
        (folder / FILE).write_bytes(content)
    origin = origin_of(folder, "run", DIGESTS)
    assert not origin.own and reason in origin.reason


def test_a_changed_file_is_named(home: Path) -> None:
    origin = origin_of(signed(home / "run"), "run", {**DIGESTS, "b.json": "2" * 64})
    assert not origin.own and origin.reason == "b.json was changed after it was signed"


def test_a_signature_of_another_kind_or_of_fewer_files_is_none(home: Path) -> None:
    """Rejects a HMAC over the digests alone: a signed checkpoint would vouch for a run."""
    folder = signed(home / "run", kind="checkpoint")
    assert not origin_of(folder, "run", DIGESTS).own
    assert not origin_of(signed(home / "run"), "run", {**DIGESTS, "c": "2" * 64}).own
    assert not origin_of(folder, "run", {"a.yaml": DIGESTS["a.yaml"]}).own


def test_a_pipe_and_a_link_in_place_of_a_signature_are_refused(home: Path) -> None:
    """A pipe would be waited for for ever."""
    folder = home / "run"
    folder.mkdir()
    os.mkfifo(folder / FILE)
    assert "not a file" in origin_of(folder, "run", DIGESTS).reason
    (folder / FILE).unlink()
    (folder / FILE).symlink_to(signed(home / "other") / FILE)
    assert not origin_of(folder, "run", DIGESTS).own


def test_a_key_that_others_can_read_vouches_for_nothing(home: Path) -> None:
    folder = signed(home / "run")
    key_path().chmod(0o644)
    origin = origin_of(folder, "run", DIGESTS)
    assert not origin.own and str(key_path()) in origin.reason and "600" in origin.reason
    with pytest.raises(ConfigError, match="can be read by others"):
        sign("run", DIGESTS)


def test_a_key_file_without_a_key_is_refused(home: Path) -> None:
    """Rejects an HMAC with an empty key, which everybody can compute."""
    signed(home / "run")
    key_path().write_bytes(b"")
    with pytest.raises(ConfigError, match="holds no key"):
        sign("run", DIGESTS)
    assert not origin_of(home / "run", "run", DIGESTS).own


def test_a_relative_config_home_is_ignored(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "config")
    monkeypatch.setenv("HOME", str(home))
    assert key_path() == home / ".config" / "tailwise" / "key"
