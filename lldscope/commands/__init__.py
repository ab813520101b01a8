"""One module per command, each named as the command."""
