"""The state of live runs: health, following, notification, and export to other tools."""
