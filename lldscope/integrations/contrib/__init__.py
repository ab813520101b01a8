"""Adapters that were never run with the trainer they are for, as of 2026-11-23.

openrlhf: its requirement flash-attn 2.8.3 is compiled with CUDA's compiler, and sampling needs vLLM
on GPUs; its calls are checked with a stand-in. prime_rl: it is not on PyPI; the loss of a sequence
is checked against a computation by hand. Whoever runs one, moves it out of here.
"""
