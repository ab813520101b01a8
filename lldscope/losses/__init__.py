"""LLDS and the policy objectives on tensors, for the trainer and for adapters; needs torch."""
