"""`tailwise demo`: train CartPole, compare with random play measured in the same run, write a page.

It stands in for the market demonstration until training on the market is wired up, and says so.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tailwise.cli.configuring import read_effective
from tailwise.cli.demo_page import write_page
from tailwise.cli.evaluating import LABELS, statistics
from tailwise.cli.main import CHECK_FAILED
from tailwise.cli.output import number, print_table
from tailwise.cli.training import Recorder, make_display, print_facts, run_folder, train
from tailwise.core.streams import Streams
from tailwise.run.agent import PPO
from tailwise.run.config import EnvConfig
from tailwise.run.metric_store import read
from tailwise.run.play import Played, evaluation_driver

EPISODES = 50
PRESET = "cartpole"
PAGE = "demo.html"


def run_demo(*, out: Path | None, steps: int | None, quiet: bool) -> int:
    """Train, evaluate, compare, write the page; exit code 1 when training did not beat random play."""
    overrides = [] if steps is None else [f"run.total_steps={steps}"]
    _, config = read_effective(PRESET, overrides)
    assert config.env.id is not None
    print(f"Training on the market is not wired up yet: this demonstration trains {config.env.id} instead.", flush=True)
    recorder, display = Recorder(), make_display(config, silent=quiet)
    with run_folder(out, "demo") as folder:
        agent = PPO(config.env.id, config, run_dir=folder, callbacks=[recorder, *display])
    print_facts(agent, folder)
    code = train(agent, recorder, display, folder, as_json=False)
    if code:
        return code

    trained = agent.evaluate(episodes=EPISODES)
    random = play_randomly(config.env, seed=config.seed, episodes=EPISODES)
    ours, theirs = statistics(trained), statistics(random)
    rows = [(label, number(ours[key]), number(theirs[key])) for key, label in LABELS]
    print_table(f"{config.env.id}, the same {EPISODES} seeded episodes", ("", "trained", "random"), rows)
    page = folder / PAGE
    write_page(page, config=config, metrics=read(folder), trained=trained, random=random)
    print(f"page: {page}")
    better, detail = beats(trained, random)
    print(detail)
    return 0 if better else CHECK_FAILED


def beats(trained: Played, random: Played) -> tuple[bool, str]:
    """Whether the mean return is higher by more than two standard errors of the difference, and the sentence."""
    gap = trained.mean - random.mean
    error = float(np.hypot(trained.standard_error or 0.0, random.standard_error or 0.0))
    if gap > 2 * error:
        return True, f"Training gained {number(gap)} in mean return, {number(2 * error)} would be chance."
    return False, (
        f"Training did not beat random play: {number(gap)} in mean return, up to {number(2 * error)} is chance; "
        "train longer, e.g. --steps 100000."
    )


def play_randomly(env: EnvConfig, *, seed: int, episodes: int) -> Played:
    """Uniformly random actions of a Discrete environment, on the episodes that the policy is evaluated on.

    One environment per episode, so `episodes` may not exceed the rows of playback.
    """
    driver = evaluation_driver(env, seed, episodes, purpose="test")
    assert driver.num_envs == episodes
    choices = driver.spaces.action.logits
    streams = Streams(seed)
    returns, lengths = np.zeros(episodes), np.zeros(episodes, dtype=np.int64)
    playing, step = np.ones(episodes, dtype=bool), 0
    driver.reset()
    while playing.any():
        draws = streams.uniforms("demo/random", update=0, environments=episodes, steps=1, draws=1, first_step=step)
        result = driver.step((draws[0, :, 0] * choices).astype(np.int64))
        returns += np.where(playing, result.reward, 0.0)
        lengths += playing & result.valid
        playing &= ~(result.terminated | result.truncated)
        step += 1
    driver.close()
    return Played(returns, lengths)
