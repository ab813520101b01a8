"""Whether a run directory or an installation is intact, and how to repair it."""
