"""Responses, trajectories, comparisons and exports of a run."""
