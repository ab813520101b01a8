"""Any Hugging Face causal LM: loading, key-value cache, log-probabilities."""
