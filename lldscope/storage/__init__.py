"""What a run looks like on disk: parts, manifests, heartbeats, integrity and compaction."""
