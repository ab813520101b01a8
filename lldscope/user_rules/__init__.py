"""Alarm rules that the user writes in a file."""
