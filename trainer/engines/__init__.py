"""What samples the rollouts: this process, vLLM in it, or a vLLM server."""
