"""What goes out: faults in words, the content policy."""
