"""Go back to before the trouble, and test changes from there."""
