"""A run folder for notebooks and other tools: `tailwise.Run("runs/demo-1")`. It reads; it never writes, and what it
reads is executed by `policy` alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailwise.core.errors import DataError
from tailwise.evaluate.path_files import DECISIONS, EQUITY, TRADES, read_frame, read_paths
from tailwise.market.path import AccountPath
from tailwise.run import checkpoint as ckpt
from tailwise.run.config import Config
from tailwise.run.run_files import ATTACKED, LARGE, EvaluationSummary, read_stored
from tailwise.run.run_folder import CONFIG, read_config, read_manifest
from tailwise.run.seeds import alerts_of, members_of, metrics_of, several
from tailwise.run.trust import Trust

if TYPE_CHECKING:
    import pandas as pd

    from tailwise.run.policy import Trader

EVALUATIONS = "evaluations"


@dataclass(frozen=True)
class Evaluation:
    """One evaluation on a market: a folder in RUN/evaluations. Frames are read anew at each call."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def summary(self) -> dict[str, Any]:
        """Statistics by symbol and policy, limits, verdicts."""
        return _json(self.path / "summary.json", self.path)

    def equity(self) -> pd.DataFrame:
        """Every bar of every path; units in `.attrs["units"]`."""
        return read_frame(self.path / EQUITY)

    def decisions(self) -> pd.DataFrame:
        return read_frame(self.path / DECISIONS)

    def trades(self) -> pd.DataFrame:
        return read_frame(self.path / TRADES)

    def paths(self) -> dict[str, dict[str, AccountPath]]:
        """Account -> policy or rule -> its path, for the functions of `tailwise.evaluate`."""
        return read_paths(self.path)


class Run:
    """What a run folder holds. trust: `policy` may execute the code that the run names although somebody else may have
    written it (docs/security.md)."""

    def __init__(self, path: str | Path, *, trust: Trust = False) -> None:
        self.path, self.trust = Path(path), trust
        self.config: Config = read_config(self.path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def manifest(self) -> dict[str, Any]:
        """Versions, platform, hashes of the bars."""
        return read_manifest(self.path)

    @property
    def metrics(self) -> pd.DataFrame:
        """One row per update, as far as the run has come; of several seeds their mean."""
        return metrics_of(self.path)

    @property
    def alerts(self) -> list[dict[str, Any]]:
        """Oldest first: update, rule, severity, evidence, advice."""
        return alerts_of(self.path)

    @property
    def members(self) -> list[Run]:
        """The runs of its seeds, as far as they have begun; itself where it has one."""
        folders = members_of(self.path, self.config)
        return [Run(one, trust=self.trust) for one in folders if (one / CONFIG).exists()]

    @property
    def checkpoints(self) -> list[str]:
        """Names, the newest first and `best` last; of several seeds those that all of them have."""
        names = [[path.name for path in ckpt.checkpoints_in(one)] for one in members_of(self.path, self.config)]
        return [name for name in names[0] if all(name in others for others in names)]

    @property
    def evaluations(self) -> list[Evaluation]:
        """On a market, oldest first; those elsewhere are single files, see `scores`."""
        files = (self.path / EVALUATIONS).glob(f"*/{EQUITY}")
        return [Evaluation(file.parent) for file in sorted(files, key=lambda file: (file.stat().st_mtime_ns, file))]

    @property
    def scores(self) -> list[dict[str, Any]]:
        """What `tailwise evaluate` kept of episodes outside the market."""
        files = sorted((self.path / EVALUATIONS).glob("*.json"))
        return [_json(file, self.path) for file in files if not file.name.startswith(ATTACKED)]

    @cached_property
    def _newest(self) -> Evaluation:
        if not self.evaluations:
            raise DataError(f"{self.path} has no evaluation on a market yet; make one: tailwise evaluate {self.path}")
        return self.evaluations[-1]

    def equity(self) -> pd.DataFrame:
        """Of the newest evaluation."""
        return self._newest.equity()

    def decisions(self) -> pd.DataFrame:
        return self._newest.decisions()

    def trades(self) -> pd.DataFrame:
        return self._newest.trades()

    def policy(self, checkpoint: str | None = None) -> Trader:
        """The policy that speaks for the run (best, else the newest), or that of a named checkpoint."""
        from tailwise.run.agent import load
        from tailwise.run.ensemble import Ensemble
        from tailwise.run.policy import policy_of
        from tailwise.run.policy_files import load_policy

        if checkpoint is None:
            return load(self.path, trust=self.trust)
        if checkpoint not in self.checkpoints:
            names = ", ".join(self.checkpoints) or "none yet"
            raise DataError(f"{self.path} has no checkpoint '{checkpoint}'; it has {names}.")
        folders = members_of(self.path, self.config)
        policies = [policy_of(load_policy(one / "checkpoints" / checkpoint, trust=self.trust)) for one in folders]
        return Ensemble(policies, config=self.config) if several(self.config) else policies[0]


def _json(file: Path, root: Path) -> dict[str, Any]:
    try:
        return read_stored(file, EvaluationSummary, root=root, limit=LARGE).model_dump(exclude_unset=True)
    except (OSError, DataError) as error:
        raise DataError(f"{error}\n{file} cannot be read; evaluate again.") from error
