"""The built-in rules, by what they watch."""
