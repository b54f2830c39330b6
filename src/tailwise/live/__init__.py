"""Policies on bars that arrive: decisions, the paper account and its guards, and one file for other programs."""
