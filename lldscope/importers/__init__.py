"""Importers: logs of other people's trainers as runs that every face of lldscope can read."""
