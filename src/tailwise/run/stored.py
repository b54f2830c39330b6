"""The shapes of what a run keeps as JSON beside its checkpoints: manifest, alerts, evaluations, ids of trackers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, RootModel

from tailwise.core.parsing import Stored
from tailwise.run.run_files import LARGEST_COUNT

Count = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]


class GitState(Stored):
    """The commit of the repository that a run was started in."""

    commit: str
    changed: bool


class Manifest(Stored):
    """manifest.json. data: purpose -> symbol -> hash of its bars; missing outside the market, as are the two below it.

    threads is missing in runs of older versions.
    """

    format: Literal[1]
    id: str = ""
    seed: Count
    versions: dict[str, str]
    python: str
    platform: str
    threads: Count | None = None
    git: GitState | None = None
    exact_resume: bool
    exact_resume_reason: str
    data: dict[str, dict[str, str]] = Field(default_factory=dict)
    data_hash: str = ""
    label: str = ""


class StoredAlert(Stored):
    """A line of alerts.jsonl, see `Alert`."""

    update: Count
    rule: str
    severity: Literal["info", "warn", "error"]
    evidence: str
    advice: str
    event: Literal["raised", "cleared", "acted"] = "raised"
    action: str = "warn"
    signal: str | None = None
    value: float | None = None


class StoredLimit(Stored):
    """Verdict on a limit; kept None: it could not be judged."""

    kept: bool | None = None


class SymbolSummary(Stored):
    """What an evaluation says about one account. limits: name of policy or rule -> verdict on the limit."""

    symbol: str = ""
    verdict: list[str] = Field(default_factory=list)
    limits: dict[str, StoredLimit | None] = Field(default_factory=dict)


class StoredTraining(Stored):
    """The training behind a policy that was evaluated; limit_acted None: it had no limit."""

    limit_acted: bool | None = None


class EvaluationSummary(Stored):
    """summary.json of an evaluation on a market, or the one file of an evaluation elsewhere."""

    mean_return: float | None = None
    symbols: list[SymbolSummary] = Field(default_factory=list)
    trained: StoredTraining | None = None


class TrackingIds(RootModel[dict[str, str]]):
    """tracking.json: name of the tracker -> id of its run."""
