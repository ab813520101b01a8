"""The experiments behind docs/research, their banks and their reports: README.md."""
