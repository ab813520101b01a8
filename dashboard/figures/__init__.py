"""What is drawn beside charts: the map of actions, and Δ as colour."""
