"""Alarm rules that the user writes in a file, and cases to test them with."""
