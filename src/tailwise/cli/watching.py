"""`tailwise watch`: the live page."""

from __future__ import annotations

import contextlib
import webbrowser
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tailwise.core.errors import DataError

RUNS = Path("runs")


def watch_runs(paths: Sequence[Path], *, host: str, port: int, token: str | None, browse: bool) -> None:
    """Serve the page until Ctrl-C."""
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise DataError(
            f"tailwise watch needs {' and '.join(missing)}, which the extra 'watch' brings: "
            "pip install 'tailwise[watch]'"
        )
    from tailwise.watch.server import serve

    def ready(address: str) -> None:
        print(f"watching {', '.join(str(path) for path in paths or [RUNS])}", flush=True)
        print(f"open {address} (Ctrl-C ends)", flush=True)
        if browse:
            webbrowser.open(address)

    with contextlib.suppress(KeyboardInterrupt):
        serve(list(paths) or [RUNS], host=host, port=port, token=token, ready=ready)
