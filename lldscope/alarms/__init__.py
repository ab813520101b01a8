"""Rules, the states they go through, what a fall is attributed to, and rules of the user's own."""
