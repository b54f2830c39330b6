"""What `--help` says beside the options: where to start, examples, and which commands belong together."""

from __future__ import annotations

import typer

START = (
    "Start here: `tailwise demo` trains on the S&P 500 and judges the policy on later years. "
    "Your own bars: `tailwise init BARS.csv`, then `tailwise train tailwise.yaml` and `tailwise report RUN`. "
    "`tailwise COMMAND --help` has examples."
)
# Heading -> commands, in this order.
PANELS = {
    "Start here": ("demo", "init", "presets"),
    "Train": ("train", "resume", "tune", "frontier", "walk-forward"),
    "Judge": ("evaluate", "report", "compare", "attack", "doctor", "watch"),
    "Trade": ("decide", "paper", "export"),
    "Look after": ("config", "data", "runs"),
}
# Command -> lines that can be typed, the usual one first.
EXAMPLES = {
    "demo": ("tailwise demo", "tailwise demo --watch --explain"),
    "init": ("tailwise init btc.csv", "tailwise init EURUSD.csv GBPUSD.csv --out pair.yaml"),
    "presets": ("tailwise presets", "tailwise presets sp500"),
    "train": ("tailwise train tailwise.yaml", "tailwise train sp500 -s run.total_steps=50000 --out runs/short"),
    "resume": ("tailwise resume runs/tailwise-1",),
    "tune": ("tailwise tune tailwise.yaml", "tailwise tune tailwise.yaml --search random --jobs 2"),
    "frontier": ("tailwise frontier tailwise.yaml --limits=-0.02,-0.05,-0.1",),
    "walk-forward": ("tailwise walk-forward tailwise.yaml", "tailwise walk-forward tailwise.yaml --folds 8 --seeds 5"),
    "evaluate": ("tailwise evaluate runs/tailwise-1", "tailwise evaluate runs/a runs/b --ensemble average"),
    "report": ("tailwise report runs/tailwise-1", "tailwise report runs/tailwise-1 --out report.html"),
    "compare": ("tailwise compare runs/tailwise-1 runs/tailwise-2",),
    "attack": ("tailwise attack runs/tailwise-1", "tailwise attack runs/tailwise-1 --kind path"),
    "doctor": ("tailwise doctor runs/tailwise-1", "tailwise doctor --self"),
    "watch": ("tailwise watch", "tailwise watch runs/tailwise-1 --port 8800"),
    "decide": ("tailwise decide runs/tailwise-1 --bars btc.csv",),
    "paper": ("tailwise paper runs/tailwise-1 --feed bars.jsonl",),
    "export": ("tailwise export runs/tailwise-1 --onnx",),
}


def with_examples(app: typer.Typer) -> None:
    """Give each command its examples and its heading, and put the commands into the order of `PANELS`."""
    place = {name: (number, panel) for number, (panel, names) in enumerate(PANELS.items()) for name in names}
    order = [name for names in PANELS.values() for name in names]
    for command in app.registered_commands:
        name = _name(command)
        command.rich_help_panel = place[name][1]
        command.epilog = "\n\n".join(f"$ {line}" for line in EXAMPLES[name])
    for group in app.registered_groups:
        group.rich_help_panel = place[str(group.name)][1]
    app.registered_commands.sort(key=lambda command: order.index(_name(command)))


def _name(command: typer.models.CommandInfo) -> str:
    """What is typed for a command."""
    return command.name or getattr(command.callback, "__name__", "").replace("_", "-")
