"""Tailwise: recurrent, distributional PPO with twin critics, for markets and for any Gymnasium environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailwise.core import VERSION as __version__

__all__ = [
    "PPO",
    "Backtest",
    "Callback",
    "Config",
    "Ensemble",
    "Policy",
    "Run",
    "StudyStopped",
    "__version__",
    "attack",
    "backtest",
    "check_bars",
    "combinatorial_cv",
    "compare",
    "evaluate_policy",
    "frontier",
    "judge",
    "leak_check",
    "load",
    "resume",
    "train",
    "tune",
    "walk_forward",
]

if TYPE_CHECKING:
    from tailwise.bars.check_bars import check_bars
    from tailwise.evaluate.combinatorial import combinatorial_cv
    from tailwise.evaluate.run_view import Run
    from tailwise.evaluate.study import StudyStopped
    from tailwise.evaluate.walk_forward import walk_forward
    from tailwise.pages.attack import attack
    from tailwise.pages.backtest import Backtest, backtest
    from tailwise.pages.compare import compare
    from tailwise.pages.frontier import frontier
    from tailwise.pages.judge import judge
    from tailwise.run.agent import PPO, load
    from tailwise.run.callbacks import Callback
    from tailwise.run.config import Config
    from tailwise.run.ensemble import Ensemble
    from tailwise.run.leak_check import leak_check
    from tailwise.run.policy import Policy
    from tailwise.run.scores import evaluate_policy
    from tailwise.run.training import resume, train
    from tailwise.scale.tune import tune

_HOMES = {
    "PPO": "tailwise.run.agent",
    "Policy": "tailwise.run.policy",
    "Ensemble": "tailwise.run.ensemble",
    "load": "tailwise.run.agent",
    "train": "tailwise.run.training",
    "resume": "tailwise.run.training",
    "Run": "tailwise.evaluate.run_view",
    "StudyStopped": "tailwise.evaluate.study",
    "attack": "tailwise.pages.attack",
    "Backtest": "tailwise.pages.backtest",
    "backtest": "tailwise.pages.backtest",
    "walk_forward": "tailwise.evaluate.walk_forward",
    "combinatorial_cv": "tailwise.evaluate.combinatorial",
    "frontier": "tailwise.pages.frontier",
    "compare": "tailwise.pages.compare",
    "evaluate_policy": "tailwise.run.scores",
    "judge": "tailwise.pages.judge",
    "leak_check": "tailwise.run.leak_check",
    "check_bars": "tailwise.bars.check_bars",
    "tune": "tailwise.scale.tune",
    "Callback": "tailwise.run.callbacks",
    "Config": "tailwise.run.config",
}


def __getattr__(name: str) -> Any:
    """Import on first use: `tailwise --help` must not pay for torch."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    if not name.startswith("_"):
        from tailwise.run.habits import unknown_name

        habit = unknown_name(name)
        if habit is not None:
            raise AttributeError(habit)
    raise AttributeError(f"module 'tailwise' has no attribute {name!r}")
