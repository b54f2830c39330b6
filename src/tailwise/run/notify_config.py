"""The section `notify` of a configuration: who is told when a health rule raises an alert."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from tailwise.core.config import Section

Severity = Literal["info", "warn", "error"]
SEVERITIES: tuple[Severity, ...] = ("info", "warn", "error")
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class _Target(Section):
    severity: Severity = Field("warn", description="alerts below this severity are not sent")
    timeout: float = Field(5.0, gt=0, le=300, description="seconds after which one delivery is given up")


class Webhook(_Target):
    """A POST request with the alert as JSON."""

    url: str = Field(description="http or https address; ${NAME} is read from the environment and never written down")

    @model_validator(mode="after")  # not of the field alone: the sentence would repeat the address
    def _no_secret_inside(self) -> Webhook:
        value = self.url
        parts = urlsplit(VARIABLE.sub("x", value))
        if not VARIABLE.match(value) and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ValueError("url is no http or https address; write for instance https://host/path or ${ALERT_URL}")
        literal = urlsplit(VARIABLE.sub("", value))
        if literal.username or literal.password or literal.query:
            raise ValueError(
                "url holds a user name, a password or a query, which would be saved with every checkpoint; put the "
                "address into an environment variable and write ${ALERT_URL}"
            )
        return self


class AlertCommand(_Target):
    """A program that gets the alert as JSON on its standard input; no shell is involved."""

    argv: tuple[str, ...] = Field(min_length=1, description="program and arguments, one entry each")

    @field_validator("argv")
    @classmethod
    def _can_be_run(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value[0] or any("\0" in part for part in value):
            raise ValueError("the first entry names the program, and no entry may hold a NUL character")
        return value


class NotifyConfig(Section):
    """Who is told about alerts. A delivery that fails or hangs never stops or slows a run."""

    webhooks: tuple[Webhook, ...] = Field((), max_length=10, description="addresses that get alerts as JSON")
    commands: tuple[AlertCommand, ...] = Field((), max_length=10, description="programs that get alerts on stdin")
    queue: int = Field(100, ge=1, le=10_000, description="alerts that wait for one target; then the oldest is dropped")
    grace: float = Field(5.0, ge=0, le=60, description="seconds that the end of a run waits for deliveries")
