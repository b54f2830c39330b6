"""The door to runs: a stranger's code is named and not executed, one's own runs open as before."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import tailwise as tw
from tailwise.core.config import dump_yaml
from tailwise.core.errors import CheckpointError, TrustError
from tailwise.core.signature import FILE as SIGNATURE
from tailwise.core.signature import key_path
from tailwise.doctor.audit import audit_run
from tailwise.run import checkpoint as ckpt
from tailwise.run.agent import PPO
from tailwise.run.reproduction import repeat
from tailwise.run.run_folder import CONFIG, origin_of_run, read_config
from tailwise.run.run_list import describe
from tailwise.run.trust import code_named_by, open_config
from tailwise.watch.runs import RunEntry, Summary
from tests.run.strangers import (
    MARKET,
    Stranger,
    another_user,
    forget,
    train,
    with_command,
    with_environment,
    with_features,
)
from tests.support import merged, small_run


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    """Another user's run whose policy needs a module with features."""
    folder = tmp_path_factory.mktemp("stranger")
    with another_user(folder):
        return with_features(folder)


OPENERS: dict[str, Callable[..., Any]] = {
    "load": lambda run, out, **trust: tw.load(run, **trust),
    "load a checkpoint": lambda run, out, **trust: tw.load(run / "checkpoints" / "update-000002", **trust),
    "Run.policy": lambda run, out, **trust: tw.Run(run, **trust).policy(),
    "Run.policy of a checkpoint": lambda run, out, **trust: tw.Run(run, **trust).policy("update-000001"),
    "resume": lambda run, out, **trust: PPO.resume(run, **trust),
    "reproduce": lambda run, out, **trust: repeat(run, out / "again", **trust),
}


@pytest.mark.parametrize("name", OPENERS)
def test_a_strangers_code_is_named_and_not_executed(name: str, stranger: Stranger, tmp_path: Path) -> None:
    """Rejects every way around the door: the module leaves a mark as soon as it is imported."""
    with pytest.raises(TrustError) as refusal:
        OPENERS[name](stranger.run, tmp_path)
    assert not stranger.mark.exists() and not list(tmp_path.iterdir())
    text = str(refusal.value)
    assert f"features.modules '{stranger.run.parent / 'mine.py'}'" in text and str(stranger.run) in text
    assert "signed with another key" in text and "--trust" in text and "trust=True" in text


@pytest.mark.parametrize("name", OPENERS)
def test_who_trusts_a_stranger_executes_the_code(name: str, stranger: Stranger, tmp_path: Path) -> None:
    copy = shutil.copytree(stranger.run, tmp_path / "copy")  # a resumed run is written to
    try:
        OPENERS[name](copy, tmp_path, trust=True)
        assert stranger.mark.exists()
    finally:
        forget(stranger.mark)


def test_looking_at_a_strangers_run_executes_nothing(stranger: Stranger) -> None:
    run = tw.Run(stranger.run)
    assert len(run.metrics) == 2 and run.checkpoints and run.manifest["seed"] == 0
    assert describe(stranger.run).status == "finished"
    assert Summary(RunEntry("id", "run", stranger.run)).read()["steps"] == 128  # what `watch` lists
    checks = {check.name: check for check in audit_run(stranger.run)}
    assert checks["code"].verdict == "warn" and "mine.py" in checks["code"].evidence
    assert checks["data"].verdict == "unknown" and "--trust" in checks["data"].evidence
    assert not stranger.mark.exists()
    try:
        assert {check.name: check for check in audit_run(stranger.run, trust=True)}["data"].verdict == "ok"
        assert stranger.mark.exists()
    finally:
        forget(stranger.mark)


def test_ones_own_run_opens_as_before_and_moved(tmp_path: Path) -> None:
    own = with_features(tmp_path)
    moved = shutil.move(own.run, tmp_path / "elsewhere")
    assert origin_of_run(moved).own
    assert tw.load(moved).features is not None
    agent, _ = PPO.resume(moved)
    assert agent.trainer.finished() is not None
    assert {check.name: check.verdict for check in audit_run(moved)}["code"] == "ok"


def test_a_saved_policy_of_ones_own_opens_where_it_was_saved(tmp_path: Path) -> None:
    own = with_features(tmp_path)
    agent, _ = PPO.resume(own.run)
    agent.save(tmp_path / "saved")
    assert tw.load(tmp_path / "saved").features is not None
    (tmp_path / "saved" / SIGNATURE).unlink()
    with pytest.raises(TrustError, match="carries no signature"):
        tw.load(tmp_path / "saved")


def test_an_own_run_whose_configuration_was_changed_is_a_strangers(tmp_path: Path) -> None:
    """Rejects a signature of the manifest alone: whoever can write into the folder could name any module."""
    own = with_features(tmp_path)
    evil = tmp_path / "evil.py"
    evil.write_text((tmp_path / "mine.py").read_text())
    config = own.run / CONFIG
    config.write_text(config.read_text().replace("mine.py", "evil.py"))
    with pytest.raises(TrustError, match=r"evil\.py.*config\.yaml was changed after it was signed"):
        PPO.resume(own.run)
    assert not own.mark.exists()


def tampered(folder: Path, key: Callable[[dict[str, Any]], dict[str, Any]], old: str, new: str) -> None:
    """Change a module in a policy's spec, with all checksums made right again, as somebody without the key can."""
    spec = folder / ckpt.POLICY_JSON
    data = json.loads(spec.read_text())
    part = key(data)
    part["modules"] = [name.replace(old, new) for name in part["modules"]]
    spec.write_bytes(ckpt.json_bytes(data, ckpt.POLICY_JSON))
    entries = json.loads((folder / ckpt.MANIFEST).read_text())["files"]
    content = spec.read_bytes()
    entries[ckpt.POLICY_JSON] = {"sha256": ckpt._sha256(content), "bytes": len(content)}
    (folder / ckpt.MANIFEST).write_bytes(ckpt._manifest_bytes(entries))
    ckpt.verify(folder)


@pytest.mark.parametrize("place", ["features", "config"])
def test_an_own_checkpoint_whose_spec_was_changed_is_a_strangers(place: str, tmp_path: Path) -> None:
    """Rejects trust in a checkpoint because of the run that it lies in, and a look at only one of the two places."""
    own = with_features(tmp_path)
    (tmp_path / "evil.py").write_text((tmp_path / "mine.py").read_text())
    newest = own.run / "checkpoints" / "update-000002"
    keys = {"features": lambda data: data["features"]["config"], "config": lambda data: data["config"]["features"]}
    tampered(newest, keys[place], "mine.py", "evil.py")
    for opener in (tw.load, lambda run: tw.load(newest)):
        with pytest.raises(TrustError, match=r"evil\.py.*checkpoint\.json was changed after it was signed"):
            opener(own.run)
    assert not own.mark.exists()
    # A resumed run may execute what its own configuration names and nothing that a checkpoint adds.
    with pytest.raises((TrustError, CheckpointError), match=r"evil\.py"):
        PPO.resume(own.run)
    assert all("evil" not in str(module) for module in loaded_features())
    forget(own.mark)


def loaded_features() -> list[str]:
    """Files of feature modules that were executed."""
    return [str(module.__file__) for name, module in sys.modules.items() if name.startswith("tailwise_own_")]


def test_runs_without_signature_open_unless_they_name_code(tmp_path: Path) -> None:
    """As runs were written before there were signatures."""
    plain = train(tmp_path / "plain", small_run(**MARKET))
    own = with_features(tmp_path)
    for run in (plain, own.run):
        for file in run.rglob(SIGNATURE):
            file.unlink()
    assert tw.load(plain).features is not None
    assert PPO.resume(plain)[0].trainer.update == 2
    for opener in (tw.load, PPO.resume):
        with pytest.raises(TrustError, match=r"mine\.py.*carries no signature.*--trust"):
            opener(own.run)
    assert not own.mark.exists()
    agent, _ = PPO.resume(own.run, trust=True)
    assert agent.trainer.update == 2
    forget(own.mark)


def test_an_environment_that_a_module_registers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    with another_user(tmp_path):
        stranger = with_environment(tmp_path)
    for opener in (tw.load, PPO.resume, lambda run: repeat(run, tmp_path / "again")):
        with pytest.raises(TrustError, match=r"env\.id 'stranger_env:Stranger-v0'.*module 'stranger_env'"):
            opener(stranger.run)
    assert not stranger.mark.exists()
    assert tw.load(stranger.run, trust=True).evaluate(episodes=2).returns.shape == (2,)
    assert stranger.mark.exists()
    forget(stranger.mark)


def test_programs_about_alerts_are_code_of_training_alone(tmp_path: Path) -> None:
    with another_user(tmp_path):
        stranger = with_command(tmp_path)
    assert tw.load(stranger.run).evaluate(episodes=1).returns.shape == (1,)  # nobody is told about anything
    for opener in (PPO.resume, lambda run: repeat(run, tmp_path / "again")):
        with pytest.raises(TrustError, match=r"notify\.commands 'touch' '.*executed'"):
            opener(stranger.run)
    assert not stranger.mark.exists()
    agent, _ = PPO.resume(stranger.run, trust=True)
    agent.learn()
    assert stranger.mark.exists()


def test_what_a_configuration_names_is_listed() -> None:
    config = small_run(
        env={"id": "a.b:C-v1"},
        notify={
            "commands": [{"argv": ["sh", "-c", "x\x1b[2J"]}],
            "webhooks": [{"url": "https://host.example/token-${SECRET}"}],
        },
    )
    assert code_named_by(config, training=False) == ("env.id 'a.b:C-v1', which imports the module 'a.b'",)
    assert code_named_by(config, training=True)[1:] == (
        r"notify.commands 'sh' '-c' 'x\x1b[2J'",  # nothing in it moves the reader's terminal
        "notify.webhooks to 'host.example' with the environment variables SECRET",  # not the path, it may be secret
    )
    features = merged(MARKET, {"features": {"modules": ["one.py", "two"]}})
    assert code_named_by(small_run(**features), training=False, modules=["two", "three"]) == tuple(
        f"features.modules '{name}'" for name in ("one.py", "two", "three")
    )
    own_reward = merged(MARKET, {"env": {"reward": {"function": "mine.py:calm"}}})
    assert code_named_by(small_run(**own_reward), training=False) == (), "playback counts log-returns"
    assert code_named_by(small_run(**own_reward), training=True) == ("env.reward.function 'mine.py:calm'",)
    for name in ("CartPole-v1", "CartPole", "tailwise/CueMemory-v0", "NoSuchThing-v3"):
        assert code_named_by(small_run(env={"id": name}), training=True) == ()


@pytest.mark.parametrize("entry_point", ["outside.package:Env", gym.Wrapper, "tailwise.market.env:Any"])
@pytest.mark.parametrize("name", ["Registered-v3", "Registered"])
def test_environments_that_other_packages_registered_are_code(name: str, entry_point: Any) -> None:
    """Rejects a look for a colon alone: such an entry point is imported as well."""
    gym.register("Registered-v3", entry_point=entry_point)
    try:
        code = code_named_by(small_run(env={"id": name}), training=False)
    finally:
        del gym.registry["Registered-v3"]
    expected = () if entry_point != "outside.package:Env" else (f"env.id '{name}', which is outside.package:Env",)
    assert code == expected


def test_a_configuration_of_the_callers_allows_what_it_names_and_no_more(stranger: Stranger) -> None:
    """As a walk-forward that is continued: its configuration is the user's, the folder may be anybody's."""
    config = read_config(stranger.run)
    assert open_config(stranger.run, training=True, trust=config) == config
    other = small_run(**merged(MARKET, {"features": {"modules": ["/else/where.py"]}}))
    with pytest.raises(TrustError, match=r"mine\.py"):
        open_config(stranger.run, training=True, trust=other)
    with pytest.raises(TrustError, match=r"mine\.py"):
        tw.load(stranger.run, trust=other)
    assert not stranger.mark.exists()
    try:
        assert tw.load(stranger.run, trust=config).features is not None and stranger.mark.exists()
    finally:
        forget(stranger.mark)


def test_without_a_key_a_run_that_names_code_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home that cannot be written stops no training."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match=r"is not signed as yours: .*trust=True"):
        own = with_features(tmp_path)
    assert not (own.run / SIGNATURE).exists()
    with pytest.raises(TrustError, match="carries no signature"):
        tw.load(own.run)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert not key_path().exists()


def test_a_run_that_is_saved_by_hand_is_no_run_of_ones_own(tmp_path: Path) -> None:
    """The signature covers exactly the two files: none of them can be left out."""
    run = train(tmp_path / "run", small_run(env={"id": "CartPole-v1"}))
    assert origin_of_run(run).own
    (run / "manifest.json").write_text((run / "manifest.json").read_text() + " ")
    assert origin_of_run(run).reason == "manifest.json was changed after it was signed"
    (run / CONFIG).write_text(dump_yaml(small_run(env={"id": "CartPole-v1"}, seed=5)))
    assert origin_of_run(run).reason == "config.yaml and manifest.json was changed after it was signed"
    (run / "manifest.json").unlink()
    assert "not whole" in origin_of_run(run).reason


CREATE = """
import os, signal, sys
from pathlib import Path
from tailwise.run.run_folder import create_run_folder
from tests.run.strangers import MARKET
from tests.support import merged, small_run
count, replace = 0, os.replace
def dying_replace(source, target):
    global count
    replace(source, target)
    count += 1
    if count == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
os.replace = dying_replace
config = small_run(**merged(MARKET, {"features": {"modules": ["mine.py"]}}))
create_run_folder(Path(sys.argv[1]), config, exact_resume=True, exact_resume_reason="", world={})
"""


@pytest.mark.parametrize("files", [1, 2, 3])
def test_no_kill_leaves_a_run_of_ones_own_without_its_signature(files: int, tmp_path: Path) -> None:
    """Rejects signing after the run is there: killed in between, it could not be resumed without a step by hand."""
    run = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-c", CREATE, str(run), str(files)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == -signal.SIGKILL
    assert (run / CONFIG).exists() == (files == 3) == origin_of_run(run).own
