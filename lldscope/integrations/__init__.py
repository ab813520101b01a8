"""Recording from other people's trainers. Each module loads what it integrates with (torch,
transformers, TRL) when it is imported, so nothing else of lldscope imports one."""
