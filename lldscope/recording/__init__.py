"""From a trainer's calls to sealed parts: the recorder, its thread, and rollout batches as rows."""
