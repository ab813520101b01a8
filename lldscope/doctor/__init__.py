"""Checks whether a run directory is intact, and repairs it."""
