"""Loops of core in compiled code, and how they are compiled. Importing one of these modules loads numba, so core itself
does so on first use."""
