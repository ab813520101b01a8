"""The updates of one RL step, and the re-score after them."""
