"""What is drawn beside charts: colours of tokens, histograms, and what a refresh sends."""
