"""The samplers of rollouts: this process, or vLLM in it."""
