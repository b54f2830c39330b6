"""`tailwise.attack`: what a policy loses when somebody moves what it observes or the path of its market, in numbers and
as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import plotly.graph_objects as go

from tailwise.core.errors import ConfigError, number
from tailwise.evaluate.attack import ATTACKS, PATH_UNIT, AttackPlan, AttackResult, Outcome, Unit, attack_run
from tailwise.evaluate.attack_path import PATH_ATTACKS, PathPlan, attack_path_run
from tailwise.pages.figures import LIMIT, OWN, QUIET, dash_of, is_dotted, layout, line
from tailwise.pages.views import Legend, Panel, Paragraphs, Part, Plot, ReportPage, Table, Top, Verdict, write_page

COLOURS = {"random": QUIET, "critic": "#b8862b", "mad": "#8a6bb0", "pgd": "#3c8d5a", "learned": LIMIT}
COLOURS |= dict(zip(PATH_ATTACKS, (QUIET, LIMIT), strict=True))
BESIDE = {"without attack": OWN, "actions by chance": "#b0578d"}  # what the attacks are read against, level lines
UNITS = {
    "std": "standard deviations of each entry",
    "bps": "basis points of each price",
    PATH_UNIT: "volatilities per bar in the mean",
}
Kind = Literal["observations", "path"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ADVERSARY_STEPS = AttackPlan.adversary_steps
_OBSERVED = (
    "Mean return over the budget, a line per attack, beside the policy without attack and actions by chance. The truth "
    "about the environment is never touched, only what the policy is shown."
)
_ON_PATH = (
    "Log-return of the test window over the budget: the worst of some random paths, and the worst path that was found "
    "against this policy, beside the window as it was and actions by chance. The bars "
    "themselves are shifted, so everybody's returns change; the column 'market' says by how much."
)


def attack(
    run: str | Path,
    *,
    kind: Kind = "observations",
    budgets: Sequence[float] | None = None,
    unit: Unit = "std",
    entries: Mapping[str, float] | None = None,
    attacks: Sequence[str] = ATTACKS,
    adversary_steps: int = ADVERSARY_STEPS,
    steps: int = 10,
    episodes: int | None = None,
    seed: int | None = None,
    checkpoint: str | None = None,
    page: str | Path | None = None,
    trust: bool = False,
) -> AttackResult:
    """Attack the frozen policy of a run on its test episodes, or on its test bars with all costs.

    kind         observations: what it is shown; path: the test bars of a market themselves, for which only budgets,
                 steps and seed are read, as in `evaluate.attack_path.PathPlan`
    budgets, unit, entries, attacks, adversary_steps, steps, episodes, seed   as in `evaluate.attack.AttackPlan`
    checkpoint   name of a checkpoint; default: the best one, else the newest
    page         HTML file to write; None: none
    trust        execute the code that the run names although somebody else may have written it (docs/security.md)

        result = tailwise.attack("runs/cartpole-1", budgets=[0.05, 0.1])
        for budget in result.budgets:
            worst = result.strongest(budget)
            print(budget, worst.attack, worst.mean_return, worst.lost)
    """
    if kind not in KINDS:
        raise ConfigError(f"the kind of the attack is '{kind}'; choose {' or '.join(KINDS)}")
    if kind == "path":
        _refuse_others(unit, entries, attacks, adversary_steps, episodes)
        path_plan = PathPlan(budgets, steps=steps, seed=seed)
        result = attack_path_run(run, path_plan, checkpoint=checkpoint, trust=trust)
    else:
        plan = AttackPlan(budgets, unit, entries, attacks, steps, adversary_steps, episodes, seed)
        result = attack_run(run, plan, checkpoint=checkpoint, trust=trust)
    if page is None:
        return result
    write_attack_page(Path(page), result)
    return replace(result, page=Path(page))


def _refuse_others(
    unit: str,
    entries: Mapping[str, float] | None,
    attacks: Sequence[str],
    adversary_steps: int,
    episodes: int | None,
) -> None:
    """Raise where something was asked for that belongs to attacks on observations."""
    given = {
        "unit": unit != "std",
        "entries": bool(entries),
        "attacks": tuple(attacks) != ATTACKS,
        "adversary_steps": adversary_steps != ADVERSARY_STEPS,
        "episodes": episodes is not None,
    }
    named = [name for name, differs in given.items() if differs]
    if named:
        raise ConfigError(
            f"{named[0]} belongs to attacks on observations; the kind path has budgets, in volatilities per bar, and "
            "plays the test window once: leave it out"
        )


def headings(result: AttackResult) -> list[str]:
    """Of `table_rows`."""
    market = [] if result.clean.tail is None else ["CVaR"]
    if result.unit == PATH_UNIT:
        return ["budget", "attack", "log-return", *market, "market", "change of the exposure", "largest shift"]
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
    lost = number(one.market) if result.unit == PATH_UNIT else lost
    moves = [lost, changed, number(one.largest_move)] if one.attack != "none" else [number(one.market), "-", "-"]
    return [budget, one.attack, f"{number(one.mean_return)}{error}", *tail, *moves]


def sentences(result: AttackResult) -> list[str]:
    """What the table comes to: the strongest attack of each budget, and what is certain."""
    moving = "the bars move" if result.unit == PATH_UNIT else f"{len(result.entries)} entries move"
    told = [
        f"Random actions return {number(result.random_actions)}, the policy without attack "
        f"{number(result.clean.mean_return)}; budgets are in {UNITS[result.unit]}, {moving}."
    ]
    for budget in result.budgets:
        worst = result.strongest(budget)
        if worst.mean_return >= result.clean.mean_return:
            told.append(f"At {budget:g} no attack lowers the mean return.")
            continue
        if result.unit == PATH_UNIT:
            by_chance = max(one.mean_return for one in result.outcomes if one.budget == budget)
            told.append(
                f"At {budget:g} the {worst.attack} that was found leaves {number(worst.mean_return)}, the worst of "
                f"some random ones {number(by_chance)}."
            )
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
    told, on_path = sentences(result), result.unit == PATH_UNIT
    moving = "Symbols whose bars move" if on_path else "Entries that move"
    colours = {name: COLOURS[name] for name in dict.fromkeys(one.attack for one in result.outcomes)} | BESIDE
    panel = Panel(
        "attack",
        "Return on other paths" if on_path else "Return under attack",
        _ON_PATH if on_path else _OBSERVED,
        [
            Plot(figure(result)),
            Legend(colours, [name for name in colours if is_dotted(name) or name in BESIDE]),
            Table(headings(result), table_rows(result)),
            Paragraphs([f"{moving}: {', '.join(result.entries)}."], "small"),
        ],
    )
    part = Part([panel])
    name = Path(result.run_dir).name or result.environment
    top = Top(part.links, Verdict(told[0], "", told[1:]))
    write_page(path, ReportPage(f"{name}: under attack", top, [part]))


def figure(result: AttackResult) -> Any:
    """Mean return over budget with standard errors, between the policy without attack and chance."""
    drawn = go.Figure()
    for name in dict.fromkeys(one.attack for one in result.outcomes):
        ordered = [one for one in result.outcomes if one.attack == name]
        if not ordered:
            continue
        x = [0.0, *(one.budget for one in ordered)]
        y = [result.clean.mean_return, *(one.mean_return for one in ordered)]
        errors = [result.clean.standard_error or 0.0, *(one.standard_error or 0.0 for one in ordered)]
        trace = line(x, y, name, COLOURS[name], width=1.8, dash=dash_of(name))
        trace.update(mode="lines+markers", error_y={"type": "data", "array": errors, "thickness": 1.0, "width": 3})
        drawn.add_trace(trace)
    for value, colour in zip((result.clean.mean_return, result.random_actions), BESIDE.values(), strict=True):
        drawn.add_hline(y=value, line={"color": colour, "width": 1.2, "dash": "dot"})
    layout(drawn, height=420)
    drawn.update_xaxes(title_text=f"budget, {UNITS[result.unit]}")
    drawn.update_yaxes(title_text="mean return")
    return drawn
