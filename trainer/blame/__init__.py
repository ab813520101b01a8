"""Repeat one recorded update from the checkpoint before it, each time with one change."""
