"""The built-in world and the tiny policy with its warm start."""
