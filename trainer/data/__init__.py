"""Questions and documents from files."""
