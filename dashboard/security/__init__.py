"""What is let in and what goes out: tokens guessed, faults in words, the content policy."""
