"""What the adapters share; the sub-packages import nothing from each other."""
