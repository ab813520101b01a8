"""The built-in rules, one module per family: thresholds, measurement and page text side by side."""

# To add a rule to a family, write in its module
#   1. its thresholds, as constants;
#   2. a function decorated with `once` that takes an `Evidence` and returns a `Measurement`;
#   3. an entry of `RULES`, whose texts are formatted from the constants;
# and its cases in tests/cases/rules/ID.yaml. A new family is also listed in diagnosis/registry.py.
# `make docs` writes them into the section "Rules" of docs/alarms.md.
