"""`tailwise data fetch` against the exchange on the loopback address."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tailwise.bars.bars import load_bars
from tailwise.cli.main import main
from tests.bars.recorded_exchange import HOUR, START, RecordedExchange, hourly

pytest.importorskip("ccxt", reason="the package ccxt (extra `live`) is not installed: nothing can be fetched")

ROOT = Path(__file__).parents[2]
COUNT = 1500
COMMAND = ["data", "fetch", "binance", "BTC/USDT", "--timeframe", "1h", "--since", "2024-01-01"]


def test_fetch_prints_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    candles = hourly(COUNT, missing=(40, 41, 90))
    with RecordedExchange(candles, clock=START + (COUNT - 1) * HOUR + 5) as server:
        server.failures = [(429, {"Retry-After": "1"})]
        assert main([*COMMAND, "--until", "2024-02-15", "--url", server.url, "--out", "btc.csv"]) == 0
        out, error = capsys.readouterr()
        assert out.splitlines()[0] == "btc.csv: 1,077 bars of 1h, 1,077 of them new"
        assert "2 gap(s), 3 bars that the exchange does not have; nothing was filled in:" in out
        assert "  2 after 2024-01-02T15:00:00Z" in out
        assert "attempt 2 of 6 in 1 s" in error, "waiting is told, beside the result"
        assert main([*COMMAND, "--url", server.url, "--out", "btc.csv", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
    assert (told["bars"], told["new"], told["unfinished"]) == (1496, 419, 1)
    assert told["gaps"][0] == {"after": "2024-01-02T15:00:00Z", "missing": 2}
    assert len(load_bars("btc.csv")) == 1496
    assert main(["data", "check", "btc.csv"]) == 0
    assert "gaps         2; largest: 3 h after 2024-01-02T15:00:00, 2 missing" in capsys.readouterr().out


def test_wrong_names_are_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "btc.txt"
    assert main([*COMMAND, "--out", str(out)]) == 2
    assert "the ending '.txt' is neither .csv nor .parquet" in capsys.readouterr().err
    assert main(["data", "fetch", "krakn", "X", "--since", "2024-01-01", "--out", str(tmp_path / "a.csv")]) == 2
    assert "there is no exchange 'krakn' in ccxt; did you mean kraken" in capsys.readouterr().err


def test_ctrl_c_keeps_what_was_fetched(tmp_path: Path) -> None:
    """Rejects a traceback and work that is lost; the same command goes on from there."""
    candles = hourly(COUNT)
    with RecordedExchange(candles, clock=START + COUNT * HOUR) as server:
        server.fail_from = 2  # the second page never comes: the command waits and tries again
        command = [sys.executable, "-m", "tailwise", *COMMAND, "--url", server.url, "--out", "btc.csv"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
        )
        try:
            deadline = time.monotonic() + 60
            while len(server.asked) < 3 and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(0.3)  # now it waits before the next attempt
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=30)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 130, error
        assert "interrupted; what was fetched is in btc.csv and the same command continues it." in error
        assert "Traceback" not in out + error
        assert len(load_bars(tmp_path / "btc.csv")) == 1000
        server.fail_from = None
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "btc.csv: 1,500 bars of 1h, 500 of them new" in done.stdout
