"""Runs kept open, and what the pages know of each."""
