"""Rollouts in tokens: sampling, batches, evaluation."""
