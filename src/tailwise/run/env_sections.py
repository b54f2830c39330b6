"""The configuration section `env`: a Gymnasium environment or the market, and what each kind says of itself."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field, JsonValue, model_validator

from tailwise.core.config import Section
from tailwise.market.env_config import MarketEnvConfig


class Words(NamedTuple):
    """What steps and rewards of an environment are called.

    step: one of them; reward: what a step earns; percent: rewards are log-returns, told in percent.
    """

    step: str
    reward: str
    percent: bool

    def amount(self, value: float, digits: int = 3) -> str:
        """A return or a tail with its unit: log-returns in percent, other rewards as they are."""
        return f"{100 * value:.{digits}g}%" if self.percent else f"{value:.{digits}g} reward"

    def difference(self, value: float, digits: int = 2) -> str:
        """The distance between two amounts, with its unit."""
        return f"{100 * value:.{digits}g} percentage points" if self.percent else f"{value:.{digits}g} reward"


class EnvSection(Section):
    """What every kind of environment says of itself; a new kind is a section here and a `World` in `run/worlds.py`.

    words          for steps and rewards
    noisy          whether chance decides most of a reward, so that rollouts must be long
    judged_whole  whether it is judged by playing fixed windows whole, once, and not by a number of episodes
    """

    words: ClassVar[Words] = Words("step", "reward", percent=False)
    noisy: ClassVar[bool] = False
    judged_whole: ClassVar[bool] = False

    @property
    def gym_id(self) -> str | None:
        """The Gymnasium id that it is built by; None where there is none."""
        return None

    @property
    def from_python(self) -> bool:
        """Whether Python has to pass the environment."""
        return False

    @property
    def market(self) -> MarketEnvSection | None:
        """The account and its rules; None outside a market."""
        return None


class GymEnv(EnvSection):
    """Any Gymnasium environment, and what is changed about it."""

    kind: Literal["gym"] = "gym"
    id: str | None = Field(None, description="Gymnasium id, e.g. CartPole-v1; null when Python passes an environment")
    kwargs: dict[str, JsonValue] = Field(default_factory=dict, description="keyword arguments of the environment")
    hide: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (), description="indices of observation entries that the agent does not see (flat Box observations)"
    )
    time_limit: int | None = Field(
        None, ge=1, description="truncate episodes after this many steps; null keeps its own"
    )

    @property
    def gym_id(self) -> str | None:
        return self.id

    @property
    def from_python(self) -> bool:
        return self.id is None


class MarketEnvSection(MarketEnvConfig, EnvSection):
    """The market of the sections data, features and costs."""

    words: ClassVar[Words] = Words("bar", "log-return", percent=True)
    noisy: ClassVar[bool] = True
    judged_whole: ClassVar[bool] = True
    kind: Literal["market"] = "market"

    @property
    def market(self) -> MarketEnvSection:
        return self

    @model_validator(mode="after")
    def _reports_by_itself(self) -> MarketEnvSection:
        if self.report:
            raise ValueError("report is for MarketEnv in Python; a run reports where it reads the parts, leave it out")
        return self


Env = Annotated[GymEnv | MarketEnvSection, Field(discriminator="kind")]
