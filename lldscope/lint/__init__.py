"""Checks whether the rows of a run agree with its configuration and with each other."""

from .checks import CHECKS, Check
from .examine import Finding, Result, examine

__all__ = ["CHECKS", "Check", "Finding", "Result", "examine"]
