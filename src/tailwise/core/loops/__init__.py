"""Loops of core in compiled code. Importing one of these modules loads numba, so core itself does so on first use."""
