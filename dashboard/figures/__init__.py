"""From tables to Plotly figures: pure functions."""
