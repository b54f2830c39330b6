"""torchrun: several ranks share a run and have the bits of one process; one that is lost stops it with a sentence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tailwise.cli.training import Started, learn
from tailwise.core.config import dump_yaml
from tailwise.core.errors import ConfigError
from tailwise.learner.shards import add_gradients
from tailwise.run.agent import PPO
from tailwise.run.callbacks import Callback, Progress
from tailwise.run.checkpoint import checkpoints_in, read_policy, read_training
from tailwise.run.config import parse_config
from tailwise.run.metric_store import FILE, differences_without_time
from tailwise.run.progress import Recorder
from tailwise.run.rank_memory import unsuited
from tailwise.run.ranks import STARTED_BY, RankLostError, group_for, place_of
from tailwise.run.sharded import Alone, shares_of
from tests.run.shard_cases import CASES, WITHOUT_MEMORY, config_of, train
from tests.support import bits

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(["src", *sys.path])}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


def same_run(one: Path, other: Path) -> None:
    """All checkpoints of both have the same bits, weights as well as training states, and all metrics are equal."""
    pairs = list(zip(checkpoints_in(one), checkpoints_in(other), strict=True))
    assert pairs
    for ours, theirs in pairs:
        assert ours.name == theirs.name
        for read in (read_policy, read_training):
            tensors, others = read(ours).tensors, read(theirs).tensors
            assert tensors.keys() == others.keys()
            assert [name for name in tensors if bits(tensors[name]) != bits(others[name])] == []
    assert not differences_without_time(one / FILE, other / FILE)


NO_MEMORY = unsuited()


@pytest.mark.timeout(900)
@pytest.mark.skipif(NO_MEMORY is not None, reason=f"ranks share no memory here: {NO_MEMORY}")
def test_ranks_have_the_bits_of_one_process(tmp_path: Path) -> None:
    """Two ranks of torchrun against one process with the same shards: MLP and LSTM, market and Gymnasium, both
    backends, through memory that they share and through gloo. With four shards on two ranks a wrong order of sums
    shows: a rank that adds up its own first."""
    program = str(Path(__file__).with_name("shard_cases.py"))
    for way in ("memory", "gloo"):
        words = [*TORCHRUN, program, str(tmp_path / way), way]
        done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr
    for case in CASES:
        train(case, tmp_path / "one")
    for way, cases in (("memory", CASES), ("gloo", WITHOUT_MEMORY)):
        for case in cases:
            folder = case.replace(", ", "-")
            same_run(tmp_path / "one" / folder, tmp_path / way / folder)


def test_gradients_are_added_in_the_order_of_the_shards() -> None:
    """1 + 1e-8 - 1 in float32 depends on the order, also on sums of pairs."""
    terms = [torch.tensor([x], dtype=torch.float32) for x in (1.0, 1e-8, -1.0, 1e-8)]
    parameter = torch.zeros(1)
    add_gradients([parameter], [[term] for term in terms])
    assert parameter.grad is not None
    in_order = float(((terms[0] + terms[1]) + terms[2]) + terms[3])
    in_pairs = float((terms[0] + terms[1]) + (terms[2] + terms[3]))
    assert float(parameter.grad) == in_order == pytest.approx(1e-8)
    assert in_pairs != in_order
    add_gradients([parameter], [[None], [terms[1]], [None]])
    assert float(parameter.grad) == float(terms[1])


@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::tailwise.core.errors.ConfigWarning")
def test_a_lost_rank_stops_the_run_and_it_goes_on_without(tmp_path: Path) -> None:
    """kill -9 of the second rank: a sentence, a checkpoint, and resumed by one process the run that never stopped."""
    source, folder, whole = tmp_path / "run.yaml", tmp_path / "killed", tmp_path / "whole"
    config = config_of("gym, mlp, torch", total_steps=24 * 256, checkpoint_every=2, keep=100)
    source.write_text(dump_yaml(parse_config(config, source="test")))
    command = [*TORCHRUN, "-m", "tailwise", "train", str(source), "--out", str(folder), "--quiet"]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (folder / "checkpoints").is_dir() or not checkpoints_in(folder):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    ranks = ranks_of(process.pid)
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    _, err = process.communicate(timeout=300)
    assert process.returncode != 0
    assert f"continue from {checkpoints_in(folder)[0].name} with: tailwise resume {folder}" in err, err
    assert "error: another rank was lost" in err or "error: torchrun ended this run: another rank was lost" in err, err
    assert "Traceback" not in err.split("ChildFailedError")[0].split("torch/distributed")[0], err
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)
    agent, _ = PPO.resume(folder)
    agent.learn(progress=False)
    PPO(config=config, run_dir=whole).learn(progress=False)
    same_run(whole, folder)


@pytest.mark.timeout(900)
def test_the_first_rank_says_why_nothing_is_trained(tmp_path: Path) -> None:
    """Three shards cannot be shared by two ranks. Rejects a first rank that is ended by torchrun, because the other one
    ended with it, before it could say so; and one that leaves a folder behind."""
    shards = ["-s", "run.environments=12", "-s", "run.shards=3"]
    command = [*TORCHRUN, "-m", "tailwise", "train", "cartpole", *shards, "--out", str(tmp_path / "run")]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0 and not (tmp_path / "run").exists()
    assert "error: run.shards is 3 and torchrun started 2 ranks; each needs as many shards" in done.stderr
    # The other one says that the first has ended, unless torchrun is faster.
    assert "src/tailwise/" not in done.stderr, "a traceback of ours"


class CtrlC(Callback):
    """Ends the training as a second Ctrl-C does, on the first of so many ranks."""

    agent: PPO

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def on_update(self, progress: Progress) -> bool | None:
        group = Alone(2)
        group.mine = shares_of(2, self.ranks)[0]
        self.agent.trainer.group = group
        raise KeyboardInterrupt


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_interrupt_within_an_update_ends_all_ranks(
    ranks: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Alone it is a normal end. Rejects that on several ranks, where the first one would order "end" while the others
    wait for its part of an update."""
    folder = tmp_path / "run"
    interrupt = CtrlC(ranks)
    agent = PPO(config=config_of("gym, mlp, torch"), run_dir=folder, callbacks=[interrupt])
    interrupt.agent = agent
    started = Started(agent, folder, Recorder(), [])
    if ranks == 1:
        assert learn(started).reason == "interrupted"
        return
    with pytest.raises(RankLostError, match="interrupted within an update"):
        learn(started)
    assert f"tailwise resume {folder}" in capsys.readouterr().err


def ranks_of(torchrun: int) -> list[int]:
    """Process ids of the ranks, by their number."""
    children = Path(f"/proc/{torchrun}/task/{torchrun}/children").read_text().split()
    numbers = {}
    for child in children:
        variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        numbers[next(int(one[5:]) for one in variables if one.startswith(b"RANK="))] = int(child)
    return [numbers[rank] for rank in sorted(numbers)]


def test_what_torchrun_says_is_read_with_care() -> None:
    started = {"TORCHELASTIC_RUN_ID": "none"}
    assert place_of({"RANK": "1", "WORLD_SIZE": "2"}) is None  # some other launcher's
    assert place_of({**started, "RANK": "0", "WORLD_SIZE": "1"}) is None
    place = place_of({**started, "RANK": "1", "WORLD_SIZE": "2"})
    assert place is not None and not place.first and place.ranks == 2
    for rank, size, words in (("x", "2", "RANK is 'x'"), ("0", "", "WORLD_SIZE is ''"), ("2", "2", "RANK is 2")):
        with pytest.raises(ConfigError, match=words):
            place_of({**started, "RANK": rank, "WORLD_SIZE": size})


def test_a_script_that_torchrun_starts_is_told_how(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejects ranks that each train the whole run."""
    for name, value in {STARTED_BY: "1", "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="torchrun started this process, and the run would be trained once by each"):
        group_for(2)


def test_shards_that_do_not_fit_are_refused() -> None:
    for run, words in (
        ({"shards": 3}, "run.shards 3 cannot share 16 environments and 2 minibatches"),
        ({"shards": 16}, "set run.environments to a multiple of 32, or fewer shards"),
    ):
        with pytest.raises(ConfigError, match=words):
            parse_config(config_of("gym, lstm, torch", **run), source="test")
