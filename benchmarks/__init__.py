"""Programs that measure lldscope: README.md says which question each of them answers."""
