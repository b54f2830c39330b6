"""The commands: parse, call, print. `main` declares them; nothing heavy is imported before a command runs."""
