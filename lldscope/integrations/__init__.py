"""Recording from other people's trainers: one module or sub-package for each.

`common` is what they share. Each loads what it
integrates with (torch, transformers, TRL) when it is imported, so nothing else of lldscope does.
"""
