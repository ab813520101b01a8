"""One recorded update, run again in other ways, from the checkpoint before it."""
