"""Whether a run directory is intact, and how to repair it."""
