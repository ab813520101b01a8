"""Optimizer steps by plain torch or DeepSpeed ZeRO, on one process or many."""
