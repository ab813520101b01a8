"""Evaluates the alarms on runs whose outcome is known."""
