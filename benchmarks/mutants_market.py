"""Mistakes in the market engine: fills, costs, stops, margin, funding, observations, guards. Each compiles kernels."""

from __future__ import annotations

from benchmarks.mutant import Mutant

COSTS = ("tests/market/test_costs.py",)
ENGINE = ("tests/market/test_engine.py",)
ACCOUNTING = ("tests/market/test_accounting.py",)
REFERENCE = ("tests/market/test_reference.py",)
SCRIPTED = "scripted or by_hand or equals_the_decimal"
FAST_ENGINE = "not coin_flip and not order_size"

MUTANTS = (
    Mutant(
        "resting orders pay the fee of a taker",
        "market/accounting.py",
        "fee = notional * rules.maker",
        "fee = notional * rules.taker",
        COSTS,
    ),
    Mutant(
        "an order pays the whole spread",
        "market/accounting.py",
        "spread = notional * rules.half_spread",
        "spread = 2.0 * notional * rules.half_spread",
        COSTS,
    ),
    Mutant(
        "impact grows linearly with participation",
        "market/accounting.py",
        "impact = notional * rules.impact * math.sqrt(participation)",
        "impact = notional * rules.impact * participation",
        COSTS,
    ),
    Mutant(
        "slippage is written down but not paid",
        "market/accounting.py",
        "paid = fee + spread + slippage + impact",
        "paid = fee + spread + impact",
        ACCOUNTING,
    ),
    Mutant(
        "shorts pay positive funding",
        "market/accounting.py",
        "funding = account.units * price * funding_rate",
        "funding = abs(account.units) * price * funding_rate",
        COSTS,
    ),
    Mutant(
        "longs pay for borrowing",
        "market/accounting.py",
        "short_notional = -min(account.units, 0.0) * price",
        "short_notional = max(account.units, 0.0) * price",
        COSTS,
    ),
    Mutant(
        "the proceeds of a short earn interest",
        "market/accounting.py",
        "own_cash = account.cash - short_notional",
        "own_cash = account.cash",
        REFERENCE,
        SCRIPTED,
    ),
    Mutant(
        "loan and cash rates are swapped",
        "market/accounting.py",
        "(rules.cash if own_cash > 0.0 else rules.loan)",
        "(rules.loan if own_cash > 0.0 else rules.cash)",
        COSTS,
    ),
    Mutant(
        "shorts receive dividends",
        "market/accounting.py",
        "amount = account.units * per_unit",
        "amount = abs(account.units) * per_unit",
        COSTS,
    ),
    Mutant(
        "the entry price stays that of the first purchase",
        "market/accounting.py",
        "account.entry = (units_before * account.entry + traded * price) / units_after",
        "account.entry = account.entry",
        ACCOUNTING,
    ),
    Mutant(
        "a position that was turned around keeps its entry price",
        "market/accounting.py",
        "elif units_before * units_after <= 0.0:  # opened or turned around",
        "elif units_before == 0.0:  # opened",
        REFERENCE,
        SCRIPTED,
    ),
    Mutant(
        "fills at the open take place at the close before",
        "market/engine.py",
        "price, volume = bar.open, bar.volume",
        "price, volume = before.close, bar.volume",
        ENGINE,
        FAST_ENGINE,
    ),
    Mutant(
        "the gap before the fill is nobody's profit",
        "market/engine.py",
        "        ledger.price_pnl += account.units * (bar.open - before.close)\n",
        "",
        ACCOUNTING,
    ),
    Mutant(
        "a margin call can be traded out of for free",
        "market/engine.py",
        "if account.units != 0.0 and equity <= rules.maintenance * abs(account.units) * price:",
        "if account.units != 0.0 and equity <= 0.0 * abs(account.units) * price:",
        ENGINE,
        FAST_ENGINE,
    ),
    Mutant(
        "the penalty of a liquidation is not charged",
        "market/engine.py",
        "    if event == LIQUIDATION:\n",
        "    if event == TAKE_PROFIT:\n",
        ENGINE,
        FAST_ENGINE,
    ),
    Mutant(
        "stops are resting orders and profits are not",
        "market/engine.py",
        "trade(account, ledger, 0.0, price, volume, rules, event == TAKE_PROFIT)",
        "trade(account, ledger, 0.0, price, volume, rules, event != TAKE_PROFIT)",
        COSTS,
    ),
    Mutant(
        "the peak of equity is not kept",
        "market/engine.py",
        "account.peak = max(account.peak, account.equity)",
        "account.peak = account.equity",
        ("tests/market/test_env.py", "tests/market/test_engine.py"),
        "not coin_flip and not order_size",
    ),
    Mutant(
        "a new episode starts with the orders of the old one",
        "market/engine.py",
        "    for k in range(pending.shape[0]):\n        pending[k] = 0.0\n",
        "",
        ("tests/market/test_env.py", "tests/market/test_engine.py"),
        "not coin_flip and not order_size",
    ),
    Mutant(
        "the order of the newest decision is filled although it is late",
        "market/engine.py",
        "                pending[i, latency - 1] = due\n                due = oldest\n",
        "                pending[i, latency - 1] = due\n",
        ENGINE,
        FAST_ENGINE,
    ),
    Mutant(
        "the reward is the simple return",
        "market/engine.py",
        "reward[i] = math.log(max(account.equity, floor) / ledger.equity_before)",
        "reward[i] = max(account.equity, floor) / ledger.equity_before - 1.0",
        ENGINE,
        FAST_ENGINE,
    ),
    Mutant(
        "ruin has no floor",
        "market/engine.py",
        "ruined = account.equity <= floor",
        "ruined = account.equity <= 0.0",
        ENGINE,
        FAST_ENGINE,
    ),
    Mutant(
        "the unrealised return of a short has the sign of a long",
        "market/engine.py",
        "out[count + 1] = gain if units > 0.0 else -gain",
        "out[count + 1] = gain",
        ("tests/market/test_env.py", "tests/market/test_reference.py"),
    ),
    Mutant(
        "the last observation of an episode shows the next one",
        "market/engine.py",
        "                observe_account(account, pending[i], bars, features, guards, single, portfolio, i, "
        "final_obs[i])\n"
        "                account.episode += 1\n",
        "                account.episode += 1\n",
        ("tests/market/test_env.py",),
    ),
    Mutant(
        "a stop is filled at its price through a gap",
        "market/orders.py",
        "        if open_ <= stop:\n            return STOP_LOSS, open_\n",
        "        if open_ <= stop:\n            return STOP_LOSS, stop\n",
        ENGINE,
        FAST_ENGINE,
    ),
    Mutant(
        "profit is taken before the stop in one bar",
        "market/orders.py",
        "        if low <= stop:\n            return STOP_LOSS, stop\n        if high > profit:\n"
        "            return TAKE_PROFIT, profit\n",
        "        if high > profit:\n            return TAKE_PROFIT, profit\n        if low <= stop:\n"
        "            return STOP_LOSS, stop\n",
        ENGINE,
        FAST_ENGINE,
    ),
    Mutant(
        "the margin of a short falls with the price",
        "market/orders.py",
        "return -cash / (units * (1.0 + maintenance))",
        "return -cash / (units * (1.0 - maintenance))",
        ENGINE,
        FAST_ENGINE,
    ),
    Mutant(
        "a short takes profit at a touch of its level",
        "market/orders.py",
        "    if low < profit:\n        return TAKE_PROFIT, profit\n",
        "    if low <= profit:\n        return TAKE_PROFIT, profit\n",
        ENGINE,
        FAST_ENGINE,
        "the line before has left where low >= profit and no other level was reached; a bar whose low equals the level "
        "comes this far only where the high reached the stop or the margin, and then a return above was taken",
    ),
    Mutant(
        "costs are not kept back from the size of an order",
        "market/orders.py",
        "signed_rate = rules.linear if target * full > units else -rules.linear",
        "signed_rate = 0.0 * rules.linear",
        ENGINE,
    ),
    Mutant(
        "lots are rounded to the nearest",
        "market/orders.py",
        "lots = math.floor(abs(units) / lot + LOT_ROUNDING)",
        "lots = math.floor(abs(units) / lot + 0.5)",
        ENGINE,
        "not coin_flip",
    ),
    Mutant(
        "an order that closes a position may be too small",
        "market/orders.py",
        "return wanted == 0.0 or not abs(wanted - units) * price < rules.minimum_notional",
        "return not abs(wanted - units) * price < rules.minimum_notional",
        (*ENGINE, *REFERENCE),
        "lots_minimum or worth_less or " + SCRIPTED,
    ),
)
