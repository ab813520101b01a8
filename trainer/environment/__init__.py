"""The Search-R1 protocol, its rewards, and retrieval."""
