"""Recording from other people's trainers: one module or sub-package for each.

`common` is what they share. Each imports its trainer (torch, transformers, TRL); nothing else of
lldscope does.
"""
