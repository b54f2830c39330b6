"""`tailwise doctor`: the audit of a run from its files, and of this machine by the formulas."""
