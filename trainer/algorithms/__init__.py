"""The updates of one RL step."""
