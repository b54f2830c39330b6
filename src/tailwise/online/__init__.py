"""Online learning: challengers that are trained aside, judged on bars that arrive, promoted by evidence, rolled back."""
