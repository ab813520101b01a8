"""Pictures other than charts: the map of actions, and Δ as colour."""
