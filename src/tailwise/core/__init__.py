"""What every package may use."""

VERSION = "0.1.0"
