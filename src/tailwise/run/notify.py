"""The section `notify` of a configuration, and the delivery of alerts to those whom it names.

Each target has a thread and a short queue of its own, and the run waits for none of them. What is secret in an address
(a token in its path, say) comes from the environment and is never printed: messages name the host alone.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from tailwise.core.config import Section
from tailwise.core.errors import ConfigError
from tailwise.run.callbacks import Callback, Progress
from tailwise.run.health.rule import Severity

SEVERITIES: tuple[Severity, ...] = ("info", "warn", "error")
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
LOG = logging.getLogger("tailwise.notify")
ANSWER = 1024  # bytes of an answer that are read
Message = dict[str, Any]


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


class DeliveryError(Exception):
    """A delivery did not work; the sentence holds no secret."""


class Delivery(Protocol):
    """How one alert reaches its target."""

    name: str

    def deliver(self, message: Message) -> None:
        """Send it, or raise DeliveryError."""

    def abandon(self) -> None:
        """The run is over: end what is still going on."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An address that sends us elsewhere is not followed: the alert was meant for that host."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class WebhookDelivery:
    """POSTs the alert as JSON."""

    def __init__(self, webhook: Webhook, environment: Mapping[str, str]) -> None:
        self._url = _fill_in(webhook.url, environment)
        self._timeout = webhook.timeout
        parts = urlsplit(self._url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("notify.webhooks: an address from the environment is not http or https; correct it.")
        self.name = f"webhook to {parts.hostname}"
        self._opener = urllib.request.build_opener(_NoRedirect)

    def deliver(self, message: Message) -> None:
        request = urllib.request.Request(
            self._url,
            data=json.dumps(message).encode(),
            headers={"Content-Type": "application/json", "User-Agent": "tailwise"},
            method="POST",
        )
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                answer.read(ANSWER)
        except urllib.error.HTTPError as error:
            raise DeliveryError(f"it answered {error.code}") from None
        except TimeoutError:
            raise DeliveryError(f"it did not answer within {self._timeout:g} s") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            # Only the kind: the text of some of these errors repeats the address.
            cause = getattr(error, "reason", error)
            kind = os.strerror(cause.errno) if isinstance(cause, OSError) and cause.errno else type(cause).__name__
            raise DeliveryError(kind) from None

    def abandon(self) -> None:
        """Nothing to end: the timeout does."""


class CommandDelivery:
    """Runs a program without a shell; the alert is on its standard input."""

    def __init__(self, command: AlertCommand) -> None:
        self._argv, self._timeout = list(command.argv), command.timeout
        self.name = f"command {Path(command.argv[0]).name}"
        self._running: subprocess.Popen[bytes] | None = None
        self._over = False
        self._starting = threading.Lock()  # so that nothing starts behind the back of `abandon`

    def deliver(self, message: Message) -> None:
        with self._starting:
            process = self._start()
        with process:
            try:
                process.communicate(json.dumps(message).encode() + b"\n", timeout=self._timeout)
            except subprocess.TimeoutExpired:
                _end_group(process)
                process.wait()
                raise DeliveryError(f"it did not end within {self._timeout:g} s") from None
        if process.returncode:
            raise DeliveryError(f"it ended with code {process.returncode}")

    def _start(self) -> subprocess.Popen[bytes]:
        if self._over:
            raise DeliveryError("the run is over")
        try:
            self._running = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is meant for the run
            )
        except OSError as error:
            raise DeliveryError(f"it cannot be started ({error.strerror})") from None
        return self._running

    def abandon(self) -> None:
        with self._starting:
            self._over = True
        if self._running is not None and self._running.poll() is None:
            _end_group(self._running)


class Mailbox:
    """The queue and the thread of one target. `put` never waits."""

    def __init__(self, delivery: Delivery, *, lowest: str, size: int) -> None:
        self.delivery = delivery
        self.lowest = SEVERITIES.index(lowest)  # type: ignore[arg-type]
        self.sent = self.failed = self.dropped = 0
        self._waiting: deque[Message] = deque()
        self._size = size
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name=f"notify: {delivery.name}", daemon=True)

    def start(self) -> None:
        """Begin to deliver."""
        self._thread.start()

    def put(self, message: Message) -> None:
        """Queue an alert; when the queue is full the oldest goes."""
        ordered = message["severity"] in SEVERITIES
        if ordered and SEVERITIES.index(message["severity"]) < self.lowest:
            return
        with self._changed:
            if len(self._waiting) >= self._size:
                self._waiting.popleft()
                self.dropped += 1
            self._waiting.append(message)
            self._changed.notify()

    def close(self) -> None:
        """No more alerts will come; the thread ends when the queue is empty."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def join(self, seconds: float) -> bool:
        """Wait for the thread; whether everything was delivered or tried. What still goes on is ended."""
        self._thread.join(seconds)
        if not self._thread.is_alive():
            return True
        with self._changed:
            self.dropped += len(self._waiting)
            self._waiting.clear()
        self.delivery.abandon()
        return False

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if not self._waiting:
                    return
                message = self._waiting.popleft()
            try:
                self.delivery.deliver(message)
            except DeliveryError as error:
                self.failed += 1
                if self.failed == 1:  # once: a dead target must not fill the terminal
                    LOG.warning("%s: an alert was not delivered: %s; the run goes on", self.delivery.name, error)
            else:
                self.sent += 1


class Notifier(Callback):
    """Sends the alerts of every update to all targets of the section `notify`."""

    def __init__(self, config: NotifyConfig, *, run: str, environment: Mapping[str, str] | None = None) -> None:
        variables = os.environ if environment is None else environment
        self._run, self._grace = run, config.grace
        self._made = [(WebhookDelivery(webhook, variables), webhook.severity) for webhook in config.webhooks]
        self._commands = [(CommandDelivery(command), command.severity) for command in config.commands]
        self._size = config.queue
        self.mailboxes: list[Mailbox] = []

    def on_start(self, update: int, steps: int, total_steps: int) -> None:
        targets: list[tuple[Delivery, str]] = [*self._made, *self._commands]
        self.mailboxes = [Mailbox(delivery, lowest=lowest, size=self._size) for delivery, lowest in targets]
        for mailbox in self.mailboxes:
            mailbox.start()

    def on_update(self, progress: Progress) -> bool | None:
        for alert in progress.alerts:
            fields = alert.to_json()
            where = {"run": self._run, "steps": progress.steps, "total_steps": progress.total_steps}
            said = f"{alert.severity} {alert.rule}: {alert.evidence}; {alert.advice}"
            message = {**where, **fields, "text": f"{self._run}, update {alert.update}: {said}"}
            for mailbox in self.mailboxes:
                mailbox.put(message)
        return None

    def on_end(self, reason: str) -> None:
        try:
            self._finish()
        finally:  # a second Ctrl-C ends the waiting, not the promise that nothing outlives the run
            for mailbox in self.mailboxes:
                mailbox.delivery.abandon()

    def on_failure(self, error: BaseException) -> None:
        """As at any end: what was raised is still told, and no command outlives the run."""
        self.on_end(f"{type(error).__name__} ended the run")

    def _finish(self) -> None:
        for mailbox in self.mailboxes:
            mailbox.close()
        deadline = time.monotonic() + self._grace  # one for all: they work side by side
        for mailbox in self.mailboxes:
            mailbox.join(max(0.0, deadline - time.monotonic()))
            lost = mailbox.failed + mailbox.dropped
            if lost > 1 or mailbox.dropped:
                LOG.warning("%s: %d alerts were not delivered, %d were", mailbox.delivery.name, lost, mailbox.sent)


def notifiers_of(config: NotifyConfig, run_dir: Path | None) -> list[Callback]:
    """The notifier of a run, if it has any target."""
    if not config.webhooks and not config.commands:
        return []
    return [Notifier(config, run="run" if run_dir is None else run_dir.name)]


def _fill_in(url: str, environment: Mapping[str, str]) -> str:
    missing = [name for name in VARIABLE.findall(url) if not environment.get(name)]
    if missing:
        raise ConfigError(
            f"notify.webhooks: the environment variable {missing[0]} is not set; set it, or remove that webhook."
        )
    return VARIABLE.sub(lambda match: environment[match[1]], url)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """The program and what it started: it leads a session of its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, 9)
