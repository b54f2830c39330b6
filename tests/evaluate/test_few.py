"""An interval from two seeds and a PBO from two trials say that they are."""

from __future__ import annotations

import numpy as np

from tailwise.evaluate.bootstrap import summarise_seeds
from tailwise.evaluate.few import overfitting_sentence, seeds_sentences


def test_two_seeds_have_an_interval_with_the_word_and_three_without() -> None:
    """Rejects an interval of two numbers that reads like any other, and one of a single seed."""
    scores = np.random.default_rng(0).standard_normal((5, 4))
    (two,) = seeds_sentences(summarise_seeds(scores[:2]))
    (three,) = seeds_sentences(summarise_seeds(scores[:3]))
    assert "of 2 seeds only" in two and "95% interval" in two and "only" not in three
    assert seeds_sentences(summarise_seeds(scores[:1])) == [] == seeds_sentences(None)


def test_a_pbo_of_two_trials_says_so() -> None:
    assert "(of 2 trials only: " in overfitting_sentence(0.4, 2) and "is chance)." in overfitting_sentence(0.4, 3)
