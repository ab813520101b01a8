"""What every room uses: the registry of tables and columns, errors, text, colours."""
