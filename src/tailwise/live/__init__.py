"""What happens beside training and after it, as it happens: the live page, and later feeds and paper trading."""
