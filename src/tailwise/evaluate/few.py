"""What seeds and trials say together, and that they are few where they are."""

from __future__ import annotations

from tailwise.evaluate.bootstrap import SeedSummary
from tailwise.evaluate.words import percent, plain

FEW = 3  # seeds or trials below which an interval or a probability of overfitting comes with a reservation


def of_few_seeds(seeds: int) -> str:
    """What has to be said of an interval over so few seeds, as the end of a sentence; empty from FEW on."""
    words = f" (of {seeds} seeds only: it hardly reaches beyond the two, and a third may lie outside)"
    return words if seeds < FEW else ""


def of_few_trials(trials: int) -> str:
    """What has to be said of a PBO among so few trials, as the end of a sentence; empty from FEW on."""
    words = f" (of {trials} trials only: it says how often the better one in one half is the worse one in the other)"
    return words if trials < FEW else ""


def seeds_sentences(sharpe: SeedSummary | None) -> list[str]:
    """The interval over seeds; nothing where there is none."""
    if sharpe is None or sharpe.low is None:
        return []
    return [
        f"Over {sharpe.seeds} seeds and {sharpe.tasks} tests the interquartile mean of the Sharpe ratio is "
        f"{plain(sharpe.iqm)}, {100 * sharpe.level:g}% interval {plain(sharpe.low)} to {plain(sharpe.high)}"
        f"{of_few_seeds(sharpe.seeds)}."
    ]


def overfitting_sentence(probability: float, trials: int) -> str:
    """What a probability of backtest overfitting among so many trials means."""
    return (
        f"Choosing the best of {trials} trials by half of these bars puts it into the worse half on the other bars "
        f"with probability {percent(probability, 0)} (PBO; 50% is chance){of_few_trials(trials)}."
    )
