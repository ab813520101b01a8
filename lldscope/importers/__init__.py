"""Importers: logs of other people's trainers as runs that every command of lldscope can read."""
