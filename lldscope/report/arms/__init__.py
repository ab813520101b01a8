"""Two runs, or two groups of runs, side by side: another document of a report's blocks."""
