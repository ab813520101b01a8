"""Any Hugging Face causal LM: loading, LoRA, key-value cache, log-probabilities."""
