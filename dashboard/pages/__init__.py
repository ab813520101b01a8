"""The pages, as Dash components."""
