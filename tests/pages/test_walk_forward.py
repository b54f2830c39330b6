"""The page of a walk-forward, from a folder as `tailwise walk-forward` leaves it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailwise import backtest
from tailwise.bars.builtin import sp500
from tailwise.core.errors import DataError
from tailwise.evaluate.evidence import account_odds, compare_paths, path_evidence
from tailwise.evaluate.judgement import POLICY, judge_rule
from tailwise.evaluate.path_files import save_paths
from tailwise.evaluate.walk_forward_result import read_walk_forward
from tailwise.pages.walk_forward import fold_rows, write_folds_report
from tests.chromium import browser
from tests.pages.browser import PHONE, look


def make_folder(folder: Path) -> Path:
    """Two folds of two seeds and the ensemble of them; the numbers are those of a rule on a year of the S&P 500."""
    bars = sp500().slice(4000, 4600)
    judged = judge_rule(backtest(np.where(np.arange(600) % 40 < 20, 1.0, 0.0), bars, first=300), bars)
    statistics = {name: asdict(numbers) for name, numbers in judged.statistics.items()}
    own, beside = judged.paths[POLICY], judged.paths["buy and hold"]
    evidence = path_evidence(own, alpha=0.05, trials=4, repetitions=100)
    compared = compare_paths(own, beside, repetitions=100)
    window = {"first_bar": "2014-11-26T00:00:00Z", "last_bar": "2016-02-05T00:00:00Z", "bars": 299}
    limit = {"limit": -0.05, "realised": -0.04, "kept": True, "sentence": "kept"}
    rows = [
        {
            "fold": fold,
            "seed": seed,
            "account": "SP500",
            "folder": None,
            "checkpoint": None,
            "updates": 100,
            "limit_acted": True,
            "steps": None,
            "ended": None,
            "refused": None,
            "evaluation": "stitched",
            "windows": {"train": window, "select": None, "test": window},
            "statistics": statistics,
            "cvar_return": statistics[POLICY]["cvar_return"],
            "limit": limit,
        }
        for fold in (1, 2)
        for seed in (0, 1, None)
    ]
    save_paths(folder / "stitched", {"SP500": judged.paths})
    intervals: dict[str, Any] = {
        n: asdict(getattr(evidence, n)) for n in ("mean_return", "sharpe", "volatility", "cvar_bar")
    }
    stitched = {
        "account": "SP500",
        "seed": None,
        "first_bar": window["first_bar"],
        "last_bar": window["last_bar"],
        "bars": 299,
        "ruined": False,
        "statistics": statistics,
        "limit": limit,
        "evidence": intervals | {"verdict": evidence.verdict, "deflated": None},
        "against": {
            "buy and hold": {
                "mean_return": asdict(compared.mean_return),
                "sharpe": asdict(compared.sharpe),
                "verdict": compared.verdict,
            }
        },
        "evaluation": "stitched",
        "odds": asdict(account_odds(own.log_returns, 252.0, repetitions=200)),
    }
    result = {
        "format": 2,
        "name": "sp500",
        "label": "real",
        "symbols": ["SP500"],
        "kind": "anchored",
        "folds": 2,
        "seeds": [0, 1],
        "purge": 100,
        "embargo": 5,
        "look_back": 100,
        "label_horizon": 1,
        "clock_bars": 600,
        "periods_per_year": 252.0,
        "alpha": 0.05,
        "gamma": 0.99,
        "horizon": 300,
        "data_hash": "f00d" * 16,
        "config_hash": "beef" * 16,
        "cut": "cafe" * 16,
        "config": {"seed": 0, "learner": {"gamma": 0.99}},
        "facts": ["Trained on something."],
        "windows": [{"fold": fold, "train": window, "select": None, "test": window} for fold in (1, 2)],
        "rows": rows,
        "ensemble": {"how": "vote", "seeds": [0, 1]},
        "stitched": [stitched],
        "across_seeds": {
            "sharpe": {"iqm": 0.3, "low": 0.1, "high": 0.5, "level": 0.95, "seeds": 2, "tasks": 2},
            "mean_return": None,
        },
        "overfitting": {"probability": 0.4, "loss_probability": 0.5, "trials": 2, "bars": 299},
        "overfitting_reason": None,
        "trials": {"counted": 2, "known_sharpes": 2, "file": "trials.jsonl"},
        "headline": {"account": "SP500", "seed": None},
        "doubts": [],
        "verdict": ["No evidence of an edge over two folds.", "The limit was kept in both."],
    }
    (folder / "walk_forward.json").write_text(json.dumps(result))
    return folder


def test_the_page_of_a_walk_forward(tmp_path: Path) -> None:
    """Verdict, stitched equity and every fold. Rejects a table without the seeds or without what was trained on."""
    folds = read_walk_forward(make_folder(tmp_path))
    rows = fold_rows(folds, "SP500")
    assert [row[:2] for row in rows] == [
        ("1", "0"),
        ("1", "1"),
        ("1", "together"),
        ("2", "0"),
        ("2", "1"),
        ("2", "together"),
    ]
    assert rows[0][2] == "2014-11-26 to 2016-02-05" and rows[0][-1] == "kept"
    assert rows[0][-2] == "0.47 / 0.00 / 0.47"  # long / short / net: long on 140 of 299 bars
    write_folds_report(tmp_path / "report.html", folds, tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8").split("<body>")[1]
    assert text.index("No evidence of an edge over two folds.") < text.index('id="panel-equity"')
    assert "all seeds and folds: 0.30 (0.10 to 0.50)" in text and "among 2 trials: 40%" in text
    assert "100 bars purged and 5 embargoed" in text and "f00d" * 16 in text
    with browser() as running:
        seen = look(running, tmp_path / "report.html", PHONE)
    assert seen.errors == [] and seen.width <= PHONE[0] and seen.undrawn == 0
    for name in ("equity", "drawdown", "folds", "trading", "rolling", "distribution", "odds"):
        assert seen.panels[f"panel-{name}"][0]["marks"] > 0, name


def test_a_doubt_does_not_take_the_place_of_the_headline(tmp_path: Path) -> None:
    """Rejects a page that counts sentences from the first one, whatever it is."""
    folds = read_walk_forward(make_folder(tmp_path))
    verdict = ("A doubt.", "Tested on bars.", "It earns.", "The limit was kept.")
    folds = folds.model_copy(update={"doubts": ("A doubt.",), "verdict": verdict})
    write_folds_report(tmp_path / "report.html", folds, tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8").split("<body>")[1]
    assert '<p class="headline">It earns.</p><p>A doubt.</p><p>Tested on bars.</p><p>The limit was kept.</p>' in text


def test_an_unknown_format_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "walk_forward.json").write_text('{"format": 1}')
    with pytest.raises(
        DataError, match=r"has format 1; this version reads format 2\.\n.* cannot be read\. Run the walk-forward again"
    ):
        read_walk_forward(tmp_path)
