"""The version, in one place that every package may read."""

VERSION = "0.1.0"
