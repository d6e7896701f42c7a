"""The subcommands: one file for each, with a click command named `command`."""
