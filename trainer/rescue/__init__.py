"""Going back to before the trouble began, and trying what should be changed."""
