"""The score of a policy in an environment that Python passes."""

from __future__ import annotations

from tailwise.core.errors import ConfigError
from tailwise.core.streams import Streams
from tailwise.model.actor_critic import ROWS
from tailwise.run.config import GymEnv
from tailwise.run.make_env import make_driver
from tailwise.run.play import Played, episodes_played_by
from tailwise.run.policy import Trader
from tailwise.run.worlds import Environment, copies_of


def evaluate_policy(
    policy: Trader,
    env: Environment,
    episodes: int = 10,
    *,
    n_eval_episodes: int | None = None,
    deterministic: bool | None = None,
    seed: int | None = None,
) -> Played:
    """Play seeded episodes; the mean return, its spread and all of them (`mean`, `std`, `returns`, `lengths`).

    env: an id, a function that builds an environment, an environment or a vector environment. n_eval_episodes: another
    name of episodes. deterministic: the most likely action (default: as the policy is meant to be played). seed: of
    environments and sampled actions, default that of the run. `env.hide` and `env.time_limit` of the training apply to
    what is built here, not to an environment that is passed.
    """
    wanted = episodes if n_eval_episodes is None else n_eval_episodes
    if not isinstance(policy, Trader):
        raise ConfigError(
            f"the policy is a {type(policy).__name__}; give what tailwise.PPO or tailwise.load made, then an "
            "environment."
        )
    if wanted < 1:
        raise ConfigError(f"episodes is {wanted}; play at least 1.")
    settings, seed = policy.config.env, policy.config.seed if seed is None else seed
    built = copies_of(env) is not None
    wrapping = None if built or not isinstance(settings, GymEnv) else settings
    driver = make_driver(
        env,
        num_envs=None if built else min(wanted, ROWS),
        streams=Streams(seed),
        purpose="test",
        hide=() if wrapping is None else wrapping.hide,
        time_limit=None if wrapping is None else wrapping.time_limit,
    )
    most_likely = policy.deterministic if deterministic is None else deterministic
    player = policy.player(deterministic=most_likely, seed=seed)
    played = episodes_played_by(player, driver, episodes=wanted)
    if not built:
        driver.close()  # what was passed stays open for who passed it
    return played
