"""Online learning: challengers trained aside, judged on bars that arrive, promoted by evidence, rolled back."""
