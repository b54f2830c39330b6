"""`tailwise watch` as a command: what it refuses to start with, and that it is light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tailwise.cli.main import main
from tests.watch.watched_runs import write_run


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--host", "0.0.0.0"], "--host 0.0.0.0 can be reached by other machines; add --token"),
        (["--host", "192.168.1.5"], "add --token"),
        (["--host", "::"], "add --token"),
        (["--host", "example.org"], "add --token"),
        (["--host", "0.0.0.0", "--token", "short"], "the token has 5 characters"),
        (["--token", ""], "the token has 0 characters"),
    ],
)
def test_an_open_door_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    write_run(tmp_path / "a")
    assert main(["watch", str(tmp_path), *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(tmp_path / "none")]) == 2
    assert "there is no such folder" in capsys.readouterr().err


def test_a_taken_port_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tailwise.watch.server import bind

    taken = bind("127.0.0.1", 0)
    try:
        assert main(["watch", str(tmp_path), "--port", str(taken.getsockname()[1])]) == 2
    finally:
        taken.close()
    assert "choose another --port" in capsys.readouterr().err


def test_without_the_extra_it_says_how_to_get_it(tmp_path: Path) -> None:
    """In a process where starlette cannot be found."""
    code = (
        "import sys, importlib.abc\n"
        "class Hide(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'starlette': raise ModuleNotFoundError(name)\n"
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'starlette' else real(name, *rest)\n"
        "from tailwise.cli.main import main\n"
        f"sys.exit(main(['watch', {str(tmp_path)!r}]))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "needs starlette" in ended.stderr and "pip install 'tailwise[watch]'" in ended.stderr


def test_the_server_does_not_import_torch() -> None:
    """Light beside a training: no torch, no numba, no pandas until an evaluation is read."""
    code = "import sys, tailwise.watch.server; print([m for m in ('torch', 'numba', 'pandas') if m in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.stdout.strip() == "[]"


def test_the_pages_files_are_declared_as_package_data() -> None:
    import tomllib

    from tailwise.watch.server import PAGES

    root = Path(__file__).parents[2]
    declared = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["tailwise"]
    assert "watch/static/*" in declared
    folder = root / "src" / "tailwise" / "watch" / "static"
    assert {path.name for path in folder.iterdir()} == {name for name, _ in PAGES.values()}
