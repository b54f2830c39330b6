# %% [markdown]
# # A policy under a tail limit, and a rule of your own
#
# Both trade the same account over the same later bars: the S&P 500, every cost charged, orders filled at the next open.
# The training is a taste of 16,384 steps; 200,000 are a real run.

# %%
import tempfile
from pathlib import Path

import pandas as pd

import tailwise
from tailwise.bars.bars import Bars
from tailwise.bars.builtin import sp500
from tailwise.evaluate.statistics import path_statistics

# %% [markdown]
# ## The policy
#
# The preset `sp500` is what `tailwise init` writes for such bars: actions multiply the exposure of a volatility target,
# and the worst 5% of returns over 100 bars may lose half of what buying and holding lost in the years of training.

# %%
out = Path(tempfile.mkdtemp()) / "limited"
training = tailwise.train("sp500", overrides=["run.total_steps=16384"], out=out)
print(training.seeds[0].limit)

# %%
path = training.policy().trade("test")[0]
print(path)

# %% [markdown]
# ## The rule
#
# A function of the bars that it may know; it gives the exposure that it wants. It begins where the policy is tested.


# %%
def above_average(past: Bars) -> float:
    """Hold while the close is above its average of 200 days."""
    return float(past.close[-1] > past.close[-200:].mean())


bars = sp500()
decided = int((bars.time < path.time[0]).sum()) - 1  # at the close before the first bar of the test
rule = tailwise.backtest(above_average, bars, first=decided)
rule.trades[["side", "first_time", "last_time", "entry_price", "exit_price", "return"]].tail()

# %% [markdown]
# ## Side by side
#
# So short a training shows the form of a comparison and no more: `tailwise.judge` adds intervals, baselines and stress
# tests, and says whether any of it is more than noise.

# %%
accounts = {"policy under the limit": path, "close above its average": rule}
statistics = {name: path_statistics(one, alpha=0.05, gamma=0.97) for name, one in accounts.items()}
table = pd.DataFrame(
    {
        name: {"a year": one.annual_return, "worst drawdown": one.max_drawdown, "worst 5% of days": one.cvar_bar}
        for name, one in statistics.items()
    }
)
table.round(3)
