"""A market with few frictions that takes a tenth of a microsecond a step: the common ground of speed comparisons.

Other learners are measured on the same steps, and one of them needs the market written a second time in its own
language. So this one is small: one asset, a fee on the change of position, an end by drawdown or age. `MarketEnv` is
the real thing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from tailwise.core.compiled import kernel

if TYPE_CHECKING:
    from tailwise.fused.ahead import Loop

BARS = 100_000
FEATURES = 32  # of the bar that has closed; EARLIER of them also of the bar before
EARLIER = 24
ACCOUNT = 8
OBSERVATION = FEATURES + EARLIER + ACCOUNT
ACTIONS = 3  # short, flat, long
COST = 0.0006  # of the traded notional
DRAWDOWN = 0.25  # loss from the highest equity that ends an episode
EPISODE = 1024  # bars after which it ends

# Columns of the account.
POSITION, EQUITY, PEAK, PAID, LAST = range(5)
COLUMNS = 5

_ONE, _HUNDRED = np.float32(1), np.float32(100)
_MULTIPLIER, _INCREMENT = np.uint64(6364136223846793005), np.uint64(1442695040888963407)  # Knuth's, for 64 bits


def make_bars(seed: int = 0) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """(features [BARS, FEATURES], simple returns [BARS]) of a random walk; the features are noise, which costs the same
    time as knowledge."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((BARS, FEATURES)).astype(np.float32)
    return features, (0.004 * rng.standard_normal(BARS)).astype(np.float32)


@kernel
def observe(row: np.ndarray, features: np.ndarray, at: int, age: int, account: np.ndarray) -> None:
    """Write what is seen at bar `at` into row [OBSERVATION]."""
    now, before = features[at], features[at - 1]
    for k in range(FEATURES):
        row[k] = now[k]
    for k in range(EARLIER):
        row[FEATURES + k] = before[k]
    seen = row[FEATURES + EARLIER :]
    seen[0] = account[POSITION]
    seen[1] = np.log(account[EQUITY])
    seen[2] = _ONE - account[EQUITY] / account[PEAK]
    seen[3] = np.float32(age) / np.float32(EPISODE)
    seen[4] = account[PAID] * _HUNDRED
    seen[5] = account[LAST] * _HUNDRED
    seen[6] = account[POSITION] * account[POSITION]
    seen[7] = _ONE


@kernel
def advance(
    actions: np.ndarray,
    features: np.ndarray,
    returns: np.ndarray,
    place: np.ndarray,
    account: np.ndarray,
    random: np.ndarray,
    obs: np.ndarray,
    final: np.ndarray,
    reward: np.ndarray,
    done: np.ndarray,
) -> None:
    """One bar for all accounts; a finished one begins again at a random bar.

    actions [N]; place int64 [N, 2]: bar and age; account [N, COLUMNS]; random uint64 [N]; obs [N, OBSERVATION]: what
    the next decision sees; final [N, OBSERVATION]: the last observation, written where done [N].
    """
    for i in range(actions.shape[0]):
        mine = account[i]
        target = np.float32(actions[i] - 1)
        cost = abs(target - mine[POSITION]) * np.float32(COST)
        at, age = place[i, 0] + 1, place[i, 1] + 1
        growth = (_ONE - cost) * (_ONE + target * returns[at])
        mine[POSITION] = target
        mine[EQUITY] *= growth
        mine[PEAK] = max(mine[PEAK], mine[EQUITY])
        mine[PAID] += cost
        mine[LAST] = np.log(growth)
        reward[i] = mine[LAST]
        done[i] = mine[EQUITY] < np.float32(1.0 - DRAWDOWN) * mine[PEAK] or age >= EPISODE
        if done[i]:
            observe(final[i], features, at, age, mine)
            random[i] = random[i] * _MULTIPLIER + _INCREMENT
            at = 1 + np.int64((random[i] >> np.uint64(33)) % np.uint64(returns.shape[0] - EPISODE - 2))
            age = 0
            mine[:] = np.float32(0)
            mine[EQUITY] = _ONE
            mine[PEAK] = _ONE
        place[i, 0] = at
        place[i, 1] = age
        observe(obs[i], features, at, age, mine)


class PlainArrays(NamedTuple):
    """What `advance` works on, as it names them; reward float32, done bool [N]: scratch; never bool [N]: False."""

    features: npt.NDArray[np.float32]
    returns: npt.NDArray[np.float32]
    place: npt.NDArray[np.int64]
    account: npt.NDArray[np.float32]
    random: npt.NDArray[np.uint64]
    final: npt.NDArray[np.float32]
    reward: npt.NDArray[np.float32]
    done: npt.NDArray[np.bool_]
    never: npt.NDArray[np.bool_]


class PlainMarket(VectorEnv):  # type: ignore[type-arg]
    """N accounts in one compiled call; SAME_STEP autoreset; every end is a termination, so nobody bootstraps there."""

    def __init__(self, accounts: int) -> None:
        self.num_envs = accounts
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (OBSERVATION,), np.float32)
        self.single_action_space = spaces.Discrete(ACTIONS)
        self.observation_space = batch_space(self.single_observation_space, accounts)
        self.action_space = batch_space(self.single_action_space, accounts)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.features, self.returns = make_bars()
        self.place = np.zeros((accounts, 2), dtype=np.int64)
        self.account = np.zeros((accounts, COLUMNS), dtype=np.float32)
        self._random: npt.NDArray[np.uint64] = np.zeros(accounts, dtype=np.uint64)
        self._final = np.zeros((accounts, OBSERVATION), dtype=np.float32)
        self._never = np.zeros(accounts, dtype=np.bool_)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Start at random bars with random ages, so that episodes do not all end in one step."""
        rng = np.random.default_rng(seed if isinstance(seed, int) else 0)
        accounts = self.num_envs
        self.place[:, 0] = rng.integers(1, BARS - EPISODE - 2, accounts)
        self.place[:, 1] = rng.integers(0, EPISODE - 1, accounts)
        self.account[:] = 0.0
        self.account[:, [EQUITY, PEAK]] = 1.0
        self._random = rng.integers(1, 2**63 - 1, accounts).astype(np.uint64)
        obs = np.empty((accounts, OBSERVATION), dtype=np.float32)
        for i in range(accounts):
            observe(obs[i], self.features, self.place[i, 0], self.place[i, 1], self.account[i])
        return obs, {}

    def arrays(self) -> PlainArrays:
        """The market as it stands, for compiled code that steps by itself; its numbers move on with that."""
        accounts = self.num_envs
        return PlainArrays(
            *(self.features, self.returns, self.place, self.account, self._random, self._final),
            *(np.empty(accounts, dtype=np.float32), np.empty(accounts, dtype=np.bool_), self._never),
        )

    def ahead_loop(self) -> Loop:
        """Lets the fused backend run whole rollouts; see `tailwise.fused.ahead.ahead_of`."""
        # Not at the top: the peers' processes step this market too, and their memory is measured without our learner.
        from benchmarks.plain_ahead import loop_of

        return loop_of(self)

    def step_all(
        self, actions: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """(obs, reward, done) in fresh arrays: the step without what Gymnasium puts around it."""
        accounts = self.num_envs
        obs = np.empty((accounts, OBSERVATION), dtype=np.float32)
        reward, done = np.empty(accounts, dtype=np.float32), np.empty(accounts, dtype=np.bool_)
        advance(
            *(actions, self.features, self.returns, self.place, self.account, self._random),
            *(obs, self._final, reward, done),
        )
        return obs, reward, done

    def step(
        self, actions: Any
    ) -> tuple[
        npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]
    ]:
        """See `gymnasium.vector.VectorEnv.step`."""
        obs, reward, done = self.step_all(np.asarray(actions, dtype=np.int64))
        return obs, reward, done, self._never, ({"final_obs": self._final.copy()} if np.count_nonzero(done) else {})
