"""The report: what it says, that it works offline, and that a browser draws every panel, wide and narrow."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tailwise
from tailwise.bars.builtin import sp500
from tailwise.core.errors import ConfigError
from tailwise.evaluate.bootstrap import REPETITIONS, SEED_REPETITIONS, Interval
from tailwise.evaluate.draws import DRAWS, MOST_STEPS
from tailwise.evaluate.evidence import FUTURES, DeflatedSharpe, PathEvidence
from tailwise.evaluate.findings import (
    LEAST_REPETITIONS,
    MOST_FUTURES,
    MOST_REPETITIONS,
    headline,
    headline_of,
    repetitions_for,
    trials_sentences,
    weigh,
)
from tailwise.evaluate.judge import Background
from tailwise.evaluate.judgement import POLICY, LimitVerdict, judge_rule
from tailwise.evaluate.portfolio import judge_portfolio
from tailwise.evaluate.regression import Regression
from tailwise.evaluate.words import reservations
from tailwise.market.costs import CostConfig
from tailwise.pages.account_panels import Curve, months_panel
from tailwise.pages.figures import MOST_POINTS, thin
from tailwise.pages.report import write_report
from tailwise.pages.views import Months
from tailwise.run.trials import Trials
from tests.chromium import browser
from tests.evaluate.paths import bar_times
from tests.pages.browser import DESKTOP, PHONE, look, wait_until_drawn

PLOTTED = (
    "equity",
    "drawdown",
    "trading",
    "rolling",
    "distribution",
    "tail",
    "costs",
    "latency",
    "crash",
    "volatility",
)
PANELS = (*PLOTTED, "missing", "odds", "baselines", "months", "metrics", "origin")


def above_average(past: object) -> float:
    close = past.close  # type: ignore[attr-defined]
    return float(close[-1] > close[-200:].mean())


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a rule over two and a half years of the S&P 500."""
    file = tmp_path_factory.mktemp("report") / "report.html"
    tailwise.backtest(above_average, sp500(), CostConfig(), first=4400, report=file)
    return file


def test_the_report_is_one_file_that_needs_no_network(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert 1_500_000 < len(text) < 3_000_000  # Plotly is inside, packed, once: it can be sent by mail
    assert text.count('id="plotly"') == 1 and "plotly.js v" not in text
    assert not re.search(r'<(script|link|img)[^>]+(src|href)="http', text)
    assert all(f'id="panel-{name}"' in text for name in PANELS)
    assert "@media print" in text and "prefers-color-scheme: dark" in text and "width=device-width" in text


def test_the_verdict_comes_before_any_picture(page: Path) -> None:
    """Rejects numbers without what was tested, on what, how noisy they are, and where bars per year come from."""
    text = page.read_text(encoding="utf-8").split("<body>")[1]
    top, full = text[: text.index('id="panel-equity"')], text[text.index('id="panel-verdict"') :]
    assert top.count("<dt>") == 6 and "<details>" in top
    for part in (
        "Tested on SP500, 2016-06-30 to 2018-12-31: 630 real bars",
        "beyond its exposure (alpha ",
        "at the same tail",
        "earned beyond its exposure, a year</dt>",
    ):
        assert part in top, part
    for part in (
        "earned beyond its exposure, a year (alpha)",
        "95% interval",
        "Against buy and hold: beta ",
        f"Of {DRAWS} draws of random positions",
        "1 trial is counted on these data",
        "252 periods per year (252 trading days)",
    ):
        assert part in full, part
    places = (
        'id="verdict"',
        '<dl class="tiles"',
        'id="panel-equity"',
        "<nav>",
        'id="panel-verdict"',
        '<table class="first"',
    )
    assert [text.index(one) for one in places] == sorted(text.index(one) for one in places)


def test_every_baseline_and_every_scenario_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in ("flat", "buy and hold", "volatility target 10%", "momentum", "random, same turnover"):
        assert text.count(f'"name":"{name}"') >= 2, name  # drawn: equity and drawdown
    for name in (
        "costs x 0<",
        "costs x 5<",
        "1 bar later",
        "5 bars later",
        "crash of 40%",
        "volatility x 2",
        "10% of the bars",
    ):
        assert name in text, name
    assert "sha256 of its bars" in text and sp500().data_hash() in text


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_browser_draws_every_panel(page: Path, size: tuple[int, int]) -> None:
    """No error on the console, no request, no panel without a drawn picture, no sideways scrolling of the page."""
    with browser() as running:
        seen = look(running, page, size, color_scheme="dark" if size == PHONE else "light")
    assert seen.errors == []
    assert seen.width <= size[0]
    assert {f"panel-{name}" for name in PANELS} <= set(seen.panels)
    assert seen.faint == []
    assert seen.undrawn == 0 and all(height > 60 for height in seen.heights.values())
    for name in PLOTTED:
        (drawn,) = seen.panels[f"panel-{name}"]
        assert drawn["width"] > 0.7 * size[0] - 250 and drawn["height"] > 200 and drawn["marks"] > 0, name
        assert drawn["right"] <= size[0]


def test_the_equity_is_drawn_on_the_first_screen(page: Path) -> None:
    """Rejects a verdict and numbers that push the picture out of the window: prose is folded, tiles are six."""
    with browser() as running:
        tab = running.new_page(viewport={"width": DESKTOP[0], "height": DESKTOP[1]})
        tab.set_default_timeout(120_000)
        tab.goto(page.resolve().as_uri())
        wait_until_drawn(tab)
        plot = tab.locator("#panel-equity .main-svg").first.bounding_box()
        tab.close()
    assert plot is not None and plot["y"] + plot["height"] <= DESKTOP[1]


def test_a_browser_sees_what_is_broken(tmp_path: Path) -> None:
    """The same look rejects a script error, a picture that was never drawn, a request and a page that is too wide."""
    broken = tmp_path / "broken.html"
    broken.write_text(
        '<body><section class="panel" id="panel-x"><div class="plotly-graph-div" style="width: 900px">x</div></section>'
        '<script src="http://localhost:9/x.js"></script><script>undefinedName();</script></body>'
    )
    with browser() as running:
        seen = look(running, broken, PHONE)
    assert seen.width > PHONE[0] and seen.undrawn == 1
    assert any("undefinedName" in error for error in seen.errors)
    assert any(error.startswith("http://localhost:9/") for error in seen.errors)


def interval(low: float | None, high: float | None) -> Interval:
    middle = 0.0 if low is None or high is None else (low + high) / 2
    return Interval(middle, low, high, 0.95, None, None)


def evidence(low: float, high: float) -> PathEvidence:
    one = interval(low, high)
    return PathEvidence(one, one, one, one, None)


def beyond(low: float, high: float, beta: float = 0.6) -> Regression:
    return Regression("buy and hold", interval(low, high), interval(beta, beta))


def limit(realised: float | None) -> LimitVerdict:
    return LimitVerdict("cvar", "the worst 5%", -0.03, 0.05, 0.97, 100, realised, 10, 1)


BETTER, ALIKE, WORSE = "better", "no evidence", "worse"


def test_the_headline_speaks_of_what_was_earned_beyond_the_exposure() -> None:
    """Rejects praise for an estimate alone, for a mean return that the exposure explains, for a win over one rule sold
    as a win over all, and a limit that was missed the other way of playing and is not mentioned."""
    rose = evidence(0.1, 0.3)  # the mean return is above 0: it held a rising market
    nothing, colour = headline(rose, beyond(-0.1, 0.1), {"momentum": ALIKE, "buy and hold": ALIKE}, {}, [])
    assert nothing == (
        "No evidence that it earned anything beyond its exposure (alpha +0.0% a year, -10.0% to +10.0%; beta 0.60 to "
        "buy and hold); at the same tail it cannot be told apart from any rule."
    )
    assert not colour
    some, colour = headline(rose, beyond(0.1, 0.3), {"momentum": BETTER, "buy and hold": ALIKE}, {}, [])
    assert some.startswith("It earned money beyond its exposure, beyond noise (alpha +20.0% a year, +10.0% to +30.0%; ")
    assert (
        some.endswith("; at the same tail it beats momentum beyond noise, but not buy and hold.") and colour == "good"
    )
    best = headline(rose, beyond(0.1, 0.3), {"buy and hold": BETTER}, {POLICY: limit(-0.01)}, [])
    assert best[0].endswith("; at the same tail it beats every rule beyond noise; the limit was kept.")
    assert best[1] == "good"
    lost, colour = headline(rose, beyond(-0.3, -0.1), {"momentum": WORSE}, {POLICY: limit(-0.04)}, [])
    assert lost.startswith("It lost money beyond its exposure, beyond noise (alpha -20.0%") and colour == "bad"
    assert lost.endswith("; at the same tail it is worse than momentum beyond noise; the limit was missed.")
    both = {POLICY: limit(-0.01), "policy, sampled": limit(-0.05), "buy and hold": limit(-0.2)}
    told, colour = headline(rose, beyond(0.1, 0.3), {}, both, [])
    assert told.endswith("; the limit was kept, but missed with sampled actions.") and colour == "bad"
    unjudged = headline(rose, beyond(0.1, 0.3), {}, {POLICY: limit(None)}, [])[0]
    assert unjudged.endswith("; the limit could not be judged.")
    still, _ = headline(rose, None, {}, {}, [])  # the rule never moved: there is no exposure to speak of
    assert still == "It earned money beyond noise."


def test_the_headline_does_not_praise_who_held_nothing_or_hardly_trained() -> None:
    """Rejects "It earned money beyond its exposure" at a gross exposure of 0.01, or after five updates."""
    little, colour = headline(evidence(0, 0.1), beyond(0.0006, 0.001, 0.01), {}, {}, reservations(0.0123, 100))
    assert colour == "" and little == (
        "Its alpha is above 0 beyond noise (0.08% a year, beta 0.01), but it hardly held anything (gross exposure "
        "0.012 on average)."
    )
    early, colour = headline(evidence(0.1, 0.3), beyond(0.1, 0.3), {}, {}, reservations(0.8, 5))
    assert colour == "" and early.startswith(
        "Its alpha is above 0 beyond noise (20.0% a year, beta 0.60), but it was trained for 5 updates only, which "
        "leaves it close to its start"
    )
    idle, _ = headline(evidence(0.1, 0.3), beyond(0.1, 0.3), {}, {POLICY: limit(-0.04)}, [], limit_acted=False)
    assert idle.endswith(
        "; the limit was missed (it never acted: training ended within its warm-up, and the policy "
        "follows the mean alone)."
    )
    both, _ = headline(evidence(-0.1, 0.3), beyond(-0.1, 0.3), {}, {}, reservations(0.0, 1))
    assert "; it hardly held anything (gross exposure 0 on average) and it was trained for 1 update only" in both
    assert reservations(0.05, 20) == [] == reservations(0.05, None)


def test_the_page_on_evidence_promises_the_resamples_that_are_drawn() -> None:
    """Rejects a page that promises 2,000 resamples where evaluate draws 1,000 or fewer."""
    text = " ".join((Path(tailwise.__file__).parents[2] / "docs/evidence.md").read_text(encoding="utf-8").split())
    longest = max(bars for bars in range(1000, 10_000, 500) if repetitions_for(bars) == MOST_REPETITIONS)
    assert (
        f"draw {REPETITIONS:,} resamples; `evaluate`, `report` and `compare` draw {MOST_REPETITIONS:,}, for windows of "
        f"more than {longest:,} bars {MOST_REPETITIONS * longest:,} / bars, and never fewer than {LEAST_REPETITIONS}."
    ) in text
    assert f"{FUTURES:,} futures (`evaluate` and `report` draw {MOST_FUTURES:,})" in text
    assert f"interval from {SEED_REPETITIONS:,} redraws of the seeds" in text
    assert f"{DRAWS} accounts" in text and f"at most {MOST_STEPS:,} decisions" in text


def test_trials_are_told() -> None:
    """Rejects the probability of a single trial when there were many."""
    many = DeflatedSharpe(0.99, 0.41, 1.37, 50)
    (told,) = trials_sentences(many, Trials(50, (), "runs/trials.jsonl"))
    assert "50 trials are counted on these data (runs/trials.jsonl)" in told and "1.37" in told
    assert "41%" in told and "99%" not in told
    assert "99%" in trials_sentences(replace(many, trials=1), Trials())[0]
    assert trials_sentences(None, Trials()) == [
        "1 trial is counted on these data (no other trial on these data is known)."
    ]
    one_of_many = Trials(2, (), "trials.jsonl", elsewhere=44).of_each(45)
    assert one_of_many.counted == 90
    _, symbols, others = trials_sentences(many, one_of_many)
    assert symbols.startswith("It is one of 45 symbols: each of them counts as a trial")
    assert others.startswith("44 more trials are counted there on bars that share none with these")


def test_thinning_keeps_peaks_and_troughs() -> None:
    """Rejects every k-th point, which loses the one bar in which everything was lost."""
    values = np.sin(np.arange(100_000) / 500.0)
    values[61_803], values[31_415] = 9.0, -9.0
    rows = thin(values)
    assert len(rows) <= MOST_POINTS + 2 and {0, 99_999, 61_803, 31_415} <= set(rows.tolist())
    every = np.arange(0, 100_000, 100_000 // MOST_POINTS)
    assert 9.0 not in values[every] and -9.0 not in values[every]
    assert np.array_equal(thin(values[:100]), np.arange(100))


def test_months_multiply_to_the_year() -> None:
    """January +1%, February -2% and so on, by hand. Rejects sums of simple returns and months cut at the wrong bar."""
    time = bar_times("daily, exchange", 262)
    growth = {f"2019-{m:02d}": 0.01 if m % 2 else -0.02 for m in range(1, 13)}
    months = time.astype("datetime64[M]").astype(str)
    count = {month: int((months == month).sum()) for month in set(months)}
    returns = np.array([np.log1p(growth.get(month, 0.0)) / count[month] for month in months])
    curve = Curve(time, np.exp(np.concatenate([[0.0], np.cumsum(returns)])), 252.0)
    panel = months_panel(curve, POLICY)
    assert panel is not None
    (block,) = panel.blocks
    assert isinstance(block, Months)
    _, cells, total = block.rows[0]
    assert [text for text, _ in cells] == ["1.0", "-2.0"] * 6
    assert total == f"{100 * (1.01**6 * 0.98**6 - 1):.1f}"
    assert months_panel(Curve(time[:5], curve.wealth[:6], 252.0), POLICY) is None


def test_resamples_are_bounded() -> None:
    assert repetitions_for(1510) == MOST_REPETITIONS and repetitions_for(500_000) == LEAST_REPETITIONS


def test_a_doubtful_annualisation_and_a_flat_account_are_shown(tmp_path: Path) -> None:
    """Rejects a report that prints annual numbers made with the wrong bars per year, or an infinite ratio."""
    bars = sp500().slice(4000, 4700)
    bars = replace(bars, frequency=replace(bars.frequency, periods_per_year=8760.0))
    path = tailwise.backtest(np.zeros(len(bars)), bars)
    found = weigh(judge_rule(path, bars))
    assert found.doubt is not None
    write_report(tmp_path / "r.html", [found], title="<t>", how="So.", gamma=0.99, background=Background())
    text = (tmp_path / "r.html").read_text().split("<body>")[1]
    assert "annual numbers assume 8,760 bars per year" in text and "&lt;t&gt;" in text
    assert "no interval: its equity hardly ever moved" in text
    assert "nan" not in re.findall(r"<td>([^<]*)</td>", text) and "inf" not in re.findall(r"<td>([^<]*)</td>", text)


def test_many_symbols_have_one_verdict_first_and_a_page_of_bounded_size(tmp_path: Path) -> None:
    """40 symbols: the verdict is on their portfolio, a table has a row for each, three are shown in full. Rejects a
    page that grows with every symbol (45 of them made 60 MB) and a verdict that one has to look for."""
    whole = sp500()
    accounts = []
    for number in range(40):
        bars = replace(whole.slice(100 * number, 100 * number + 300), symbol=f"S{number:02d}")
        bars = replace(bars, time=whole.time[:300])
        path = tailwise.backtest(np.full(len(bars), 0.5), bars)
        accounts.append(weigh(judge_rule(path, bars)))
    together = weigh(judge_portfolio([one.judged for one in accounts], gamma=0.99))
    file = tmp_path / "r.html"
    page = {"title": "t", "how": "So.", "gamma": 0.99, "background": Background()}
    write_report(file, accounts, portfolio=together, **page)  # type: ignore[arg-type]
    text = file.read_text(encoding="utf-8")
    assert len(text) < 3_000_000
    body = text.split("<body>")[1]
    assert body.index("equal-risk portfolio of 40 symbols") < body.index('id="panel-equity"') < body.index("S00")
    assert headline_of(together)[0].replace("&", "&amp;") in body[: body.index('id="panel-equity"')]
    assert all(f"<td>S{number:02d}</td>" in body for number in range(40))
    drawn = re.findall(r'<h1 class="symbol" id="account[^"]*">([^<]+)</h1>', body)
    assert drawn == ["S00", "S01", "S02"]
    assert "chance alone shows 1.0 of each" in body and "all long" in body
    with pytest.raises(ConfigError, match="40 accounts have no verdict without their portfolio"):
        write_report(file, accounts, **page)  # type: ignore[arg-type]
