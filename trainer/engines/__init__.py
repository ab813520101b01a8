"""What samples the rollouts: this process, or vLLM in it."""
