"""Open runs, and the snapshots that pages get of them."""
