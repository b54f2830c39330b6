"""Notifiers: what is sent, and that nothing they do reaches the run."""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tailwise.core.config import dump_yaml, parse
from tailwise.core.errors import ConfigError
from tailwise.run.agent import PPO
from tailwise.run.callbacks import Callback, Progress
from tailwise.run.config import parse_config
from tailwise.run.health import Alert
from tailwise.run.notify import Notifier, NotifyConfig

SECRET = "s3cr3t-path-9f8a"
WRITE_STDIN = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read())"


def alert(update: int, severity: str = "warn") -> Alert:
    return Alert(update, "planted", severity, "evidence of it", "what to do")


def progress(*alerts: Alert) -> Progress:
    return Progress(alerts[0].update, 640, 1000, {}, tuple(alerts))


def settings(**section: Any) -> NotifyConfig:
    return parse(NotifyConfig, section, source="test")


class Receiver(HTTPServer):
    """A loopback server that keeps what it is sent; `answer` is the status it gives."""

    def __init__(self, answer: int = 200) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.answer = answer
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook"


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append(json.loads(body))
        self.server.paths.append(self.path)
        self.send_response(self.server.answer)
        if self.server.answer in (301, 302, 307):
            self.send_header("Location", self.server.url + "/elsewhere")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Quiet."""


@pytest.fixture
def receiver(request: pytest.FixtureRequest) -> Iterator[Receiver]:
    server = Receiver(getattr(request, "param", 200))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def dead_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_webhook_gets_the_alert_as_json(receiver: Receiver) -> None:
    notifier = Notifier(settings(webhooks=[{"url": receiver.url}]), run="demo-1")
    notifier.on_start(0, 0, 1000)
    notifier.on_update(progress(alert(5), alert(5, "info")))
    notifier.on_end("done")
    assert len(receiver.bodies) == 1  # info is below the severity that is asked for
    body = receiver.bodies[0]
    assert (body["run"], body["update"], body["rule"], body["severity"]) == ("demo-1", 5, "planted", "warn")
    assert body["text"] == "demo-1, update 5: warn planted: evidence of it; what to do"
    assert (notifier.mailboxes[0].sent, notifier.mailboxes[0].failed) == (1, 0)


@pytest.mark.parametrize("receiver", [500, 302], indirect=True)
def test_a_webhook_that_refuses_or_sends_elsewhere_is_a_failure(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """Rejects a client that follows redirects: the alert would go to another address."""
    notifier = Notifier(settings(webhooks=[{"url": receiver.url}]), run="a")
    notifier.on_start(0, 0, 1)
    with caplog.at_level(logging.WARNING):
        notifier.on_update(progress(alert(1)))
        notifier.on_end("done")
    assert notifier.mailboxes[0].failed == 1
    assert receiver.paths == ["/hook"]
    assert f"it answered {receiver.answer}" in caplog.text


def test_a_command_gets_the_alert_on_stdin_and_no_shell_sees_it(tmp_path: Path) -> None:
    kept, trap = tmp_path / "kept.jsonl", tmp_path / "trap"
    argv = [sys.executable, "-c", WRITE_STDIN, str(kept), f"; touch {trap}", f"$(touch {trap})"]
    notifier = Notifier(settings(commands=[{"argv": argv, "severity": "error", "timeout": 60}], grace=60), run="a")
    notifier.on_start(0, 0, 1)
    notifier.on_update(progress(Alert(3, f"$(touch {trap})", "error", f"`touch {trap}`", "x"), alert(3, "warn")))
    notifier.on_end("done")
    told = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [(one["update"], one["evidence"]) for one in told] == [(3, f"`touch {trap}`")]
    assert not trap.exists()


def test_a_full_queue_drops_the_oldest_and_never_waits() -> None:
    notifier = Notifier(settings(commands=[{"argv": ["sleep", "60"], "timeout": 60}], queue=3, grace=0.2), run="a")
    notifier.on_start(0, 0, 1)
    started = time.perf_counter()
    for update in range(500):
        notifier.on_update(progress(alert(update)))
    assert time.perf_counter() - started < 0.5
    mailbox = notifier.mailboxes[0]
    assert mailbox.dropped >= 495
    notifier.on_end("done")
    assert time.perf_counter() - started < 5
    assert mailbox.sent == 0


def test_a_hanging_command_is_ended_after_its_time(caplog: pytest.LogCaptureFixture) -> None:
    notifier = Notifier(settings(commands=[{"argv": ["sleep", "60"], "timeout": 0.2}], grace=10), run="a")
    notifier.on_start(0, 0, 1)
    started = time.perf_counter()
    with caplog.at_level(logging.WARNING):
        notifier.on_update(progress(alert(1)))
        notifier.on_end("done")
    assert time.perf_counter() - started < 5
    assert notifier.mailboxes[0].failed == 1
    assert "command sleep: an alert was not delivered: it did not end within 0.2 s" in caplog.text


@pytest.mark.parametrize(
    "url",
    [
        f"http://127.0.0.1:{{port}}/{SECRET}?token={SECRET}",
        f"http://user:{SECRET}@127.0.0.1:{{port}}/",
        f"http://127.0.0.1:{{port}}/{SECRET} with blanks\n",
        f"http://{SECRET}.invalid/{SECRET}"[:60].replace(f"{SECRET}.invalid", "nowhere.invalid"),
    ],
)
def test_a_secret_is_neither_printed_nor_saved(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages of urllib repeat an address that they do not like; ours never do."""
    monkeypatch.setenv("ALERT_URL", url.format(port=dead_port()))
    section = settings(webhooks=[{"url": "${ALERT_URL}", "timeout": 2}])
    notifier = Notifier(section, run="a")
    notifier.on_start(0, 0, 1)
    with caplog.at_level(logging.DEBUG):
        notifier.on_update(progress(alert(1)))
        notifier.on_end("done")
    assert notifier.mailboxes[0].failed == 1
    assert "was not delivered" in caplog.text
    assert SECRET not in caplog.text
    assert SECRET not in dump_yaml(section)


@pytest.mark.parametrize("url", [f"http://user:{SECRET}@host/", f"https://host/?key={SECRET}", f"ftp://host/{SECRET}"])
def test_a_secret_written_into_the_configuration_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigError, match=r"notify\.webhooks\[0\]: url") as refused:
        parse_config({"notify": {"webhooks": [{"url": url}]}}, source="test")
    assert SECRET not in str(refused.value)


def test_a_variable_that_is_not_set_is_a_sentence_before_the_run() -> None:
    with pytest.raises(ConfigError, match="the environment variable NOT_THERE is not set"):
        Notifier(settings(webhooks=[{"url": "https://host/${NOT_THERE}"}]), run="a", environment={})
    with pytest.raises(ConfigError, match="argv"):
        settings(commands=[{"argv": []}])


def test_targets_that_are_dead_or_asleep_change_nothing_of_a_run(tmp_path: Path) -> None:
    """A real run whose every update raises an alert, with a dead port, a sleeping command and one that is not there."""

    def train(name: str, notify: dict[str, Any]) -> tuple[PPO, float]:
        tree = {
            "backend": "torch",
            "env": {"id": "CartPole-v1"},
            "model": {"encoder": {"hidden": [8]}, "critic": {"quantiles": 40, "minibatch_particles": 8}},
            "learner": {"epochs": 1, "minibatches": 1, "learning_rate": 1e-4},
            "run": {"environments": 2, "rollout_steps": 8, "total_steps": 96, "tensorboard": False},
            "notify": notify,
        }
        agent = PPO(config=parse_config(tree, source="test"), run_dir=tmp_path / name)
        for callback in agent.trainer.callbacks:
            if isinstance(callback, Notifier):
                callback.on_update = _with_alert(callback.on_update)  # type: ignore[method-assign]
        started = time.perf_counter()
        reason = agent.learn()
        assert reason == "all 96 steps are done"
        return agent, time.perf_counter() - started

    from tailwise.run.metric_store import differences_without_time

    train("quiet", {})
    targets = {
        "webhooks": [{"url": f"http://127.0.0.1:{dead_port()}/x", "timeout": 1}],
        "commands": [{"argv": ["sleep", "100"], "timeout": 100}, {"argv": ["/nowhere/program"]}],
        "grace": 0.3,
    }
    agent, seconds = train("loud", targets)
    assert differences_without_time(tmp_path / "quiet" / "metrics.jsonl", tmp_path / "loud" / "metrics.jsonl") == []
    notifier = next(c for c in agent.trainer.callbacks if isinstance(c, Notifier))
    assert [mailbox.sent for mailbox in notifier.mailboxes] == [0, 0, 0]
    assert all(mailbox.failed + mailbox.dropped >= 1 for mailbox in notifier.mailboxes)
    assert seconds < 30  # a run that waited for its targets would take 600 s


def _with_alert(real: Any) -> Any:
    """An alert in every update, as a broken run would raise them."""

    def on_update(told: Progress) -> bool | None:
        return real(Progress(told.update, told.steps, told.total_steps, told.metrics, (alert(told.update),)))  # type: ignore[no-any-return]

    return on_update


class Breaking(Callback):
    """Raises after its update, once the command of the notifier runs."""

    def __init__(self, started: Path, error: type[BaseException]) -> None:
        self.started, self.error = started, error

    def on_update(self, progress: Progress) -> bool | None:
        until = time.monotonic() + 60
        while not self.started.exists() and time.monotonic() < until:
            time.sleep(0.01)
        raise self.error("in the middle of a run")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_no_command_outlives_a_run_that_ends_by_an_exception(tmp_path: Path, error: type[BaseException]) -> None:
    """A real run with a command that would sleep for 100 s, and a child of it that does. Rejects ending commands only
    where a run comes to its own end."""
    pids = tmp_path / "pids"
    script = f'sleep 100 & echo "$$ $!" > {pids}.part; mv {pids}.part {pids}; wait'
    tree = {
        "backend": "torch",
        "env": {"id": "CartPole-v1"},
        "model": {"encoder": {"hidden": [8]}, "critic": {"quantiles": 40, "minibatch_particles": 8}},
        "learner": {"epochs": 1, "minibatches": 1},
        "run": {"environments": 2, "rollout_steps": 8, "total_steps": 96, "tensorboard": False},
        "health": {"rules": [{"name": "planted", "signal": "policy/epochs", "above": 0.0}]},
        "notify": {"commands": [{"argv": ["sh", "-c", script], "timeout": 100}], "grace": 0.2},
    }
    agent = PPO(config=parse_config(tree, source="test"), run_dir=tmp_path / "run")
    agent.trainer.callbacks.append(Breaking(pids, error))
    with pytest.raises(error, match="in the middle of a run"):
        agent.learn()
    shell, child = (int(pid) for pid in pids.read_text().split())
    until = time.monotonic() + 10  # the process has to be collected after its end
    while (alive(shell) or alive(child)) and time.monotonic() < until:
        time.sleep(0.02)
    assert not alive(shell) and not alive(child)


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
