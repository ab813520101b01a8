"""A run's parts as DuckDB tables, views and signals, read-only and bounded."""
