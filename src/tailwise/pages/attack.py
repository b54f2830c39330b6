"""`tailwise.attack`: what a policy loses when somebody moves what it observes, in numbers and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from tailwise.core.errors import number
from tailwise.evaluate.attack import ATTACKS, AttackPlan, AttackResult, Outcome, Unit, attack_run
from tailwise.pages.figures import INK, LIMIT, OWN, QUIET, layout, legend, line
from tailwise.pages.views import Panel, Paragraphs, Part, Plot, ReportPage, Table, Top, Verdict, write_page

COLOURS = {"random": QUIET, "critic": "#b8862b", "mad": "#8a6bb0", "pgd": "#3c8d5a", "learned": LIMIT}
UNITS = {"std": "standard deviations of each entry", "bps": "basis points of each price"}


def attack(
    run: str | Path,
    *,
    budgets: Sequence[float] | None = None,
    unit: Unit = "std",
    entries: Mapping[str, float] | None = None,
    attacks: Sequence[str] = ATTACKS,
    adversary_steps: int = 50_000,
    steps: int = 10,
    episodes: int | None = None,
    seed: int | None = None,
    checkpoint: str | None = None,
    page: str | Path | None = None,
    trust: bool = False,
) -> AttackResult:
    """Attack the frozen policy of a run on its test episodes, or on its test bars with all costs.

    budgets, unit, entries, attacks, adversary_steps, steps, episodes, seed   as in `evaluate.attack.AttackPlan`
    checkpoint   name of a checkpoint; default: the best one, else the newest
    page         HTML file to write; None: none
    trust        execute the code that the run names although somebody else may have written it (docs/security.md)

        result = tailwise.attack("runs/cartpole-1", budgets=[0.05, 0.1])
        for budget in result.budgets:
            worst = result.strongest(budget)
            print(budget, worst.attack, worst.mean_return, worst.lost)
    """
    plan = AttackPlan(budgets, unit, entries, attacks, steps, adversary_steps, episodes, seed)
    result = attack_run(run, plan, checkpoint=checkpoint, trust=trust)
    if page is None:
        return result
    write_attack_page(Path(page), result)
    return replace(result, page=Path(page))


def headings(result: AttackResult) -> list[str]:
    """Of `table_rows`."""
    market = [] if result.clean.tail is None else ["CVaR"]
    changed = "decisions turned" if result.discrete else "change of the action"
    return ["budget", "attack", "mean return", *market, "lost", changed, "largest move, std"]


def table_rows(result: AttackResult) -> list[list[str]]:
    """A row per budget and attack, the policy without any first."""
    return [_row(result, one) for one in (result.clean, *result.outcomes)]


def _row(result: AttackResult, one: Outcome) -> list[str]:
    tail = [] if result.clean.tail is None else [number(one.tail)]
    error = "" if one.standard_error is None else f" +- {one.standard_error:.2g}"
    lost = "-" if one.lost is None else f"{one.lost:.0%}"
    changed = f"{one.changed:.1%}" if result.discrete else number(one.changed)
    budget = "-" if one.attack == "none" else f"{one.budget:g}"
    moves = [lost, changed, number(one.largest_move)] if one.attack != "none" else ["-", "-", "-"]
    return [budget, one.attack, f"{number(one.mean_return)}{error}", *tail, *moves]


def sentences(result: AttackResult) -> list[str]:
    """What the table comes to: the strongest attack of each budget, and what is certain."""
    told = [
        f"Random actions return {number(result.random_actions)}, the policy without attack "
        f"{number(result.clean.mean_return)}; budgets are in {UNITS[result.unit]}, {len(result.entries)} entries move."
    ]
    for budget in result.budgets:
        worst = result.strongest(budget)
        if worst.mean_return >= result.clean.mean_return:
            told.append(f"At {budget:g} no attack lowers the mean return.")
            continue
        lost = "" if worst.lost is None else f", {worst.lost:.0%} of what it had over random actions"
        told.append(f"At {budget:g} the strongest attack, {worst.attack}, leaves {number(worst.mean_return)}{lost}.")
    if result.not_certified is not None:
        told.append(f"Nothing is certified: {result.not_certified}.")
    for one in result.certificates:
        if one.held is not None:
            told.append(f"Within {one.budget:g} it is certain that {one.held:.1%} of single decisions hold.")
        else:
            told.append(
                f"Within {one.budget:g} it is certain that a single action changes by at most {number(one.largest)} "
                "in the mean."
            )
    return told


def write_attack_page(path: Path, result: AttackResult) -> None:
    """Write the picture, the table and what is certain."""
    told = sentences(result)
    panel = Panel(
        "attack",
        "Return under attack",
        "Mean return over the budget, a line per attack; the upper line is the policy without attack, the lower one "
        "actions by chance. The truth about the environment is never touched, only what the policy is shown.",
        [
            Plot(figure(result)),
            legend({name: COLOURS[name] for name in ATTACKS if any(one.attack == name for one in result.outcomes)}),
            Table(headings(result), table_rows(result)),
            Paragraphs([f"Entries that move: {', '.join(result.entries)}."], "small"),
        ],
    )
    part = Part([panel])
    name = Path(result.run_dir).name or result.environment
    top = Top(part.links, Verdict(told[0], "", told[1:]))
    write_page(path, ReportPage(f"{name}: under attack", top, [part]))


def figure(result: AttackResult) -> Any:
    """Mean return over budget with standard errors, between the policy without attack and chance."""
    drawn = go.Figure()
    for name in ATTACKS:
        ordered = [one for one in result.outcomes if one.attack == name]
        if not ordered:
            continue
        x = [0.0, *(one.budget for one in ordered)]
        y = [result.clean.mean_return, *(one.mean_return for one in ordered)]
        errors = [result.clean.standard_error or 0.0, *(one.standard_error or 0.0 for one in ordered)]
        trace = line(x, y, name, COLOURS[name], width=1.8)
        trace.update(mode="lines+markers", error_y={"type": "data", "array": errors, "thickness": 1.0, "width": 3})
        drawn.add_trace(trace)
    for value, colour in ((result.clean.mean_return, OWN), (result.random_actions, INK)):
        drawn.add_hline(y=value, line={"color": colour, "width": 1.2, "dash": "dot"})
    layout(drawn, height=420)
    drawn.update_xaxes(title_text=f"budget, {UNITS[result.unit]}")
    drawn.update_yaxes(title_text="mean return")
    return drawn
