"""Rules and their alarms, the attribution of a fall to its cause, and rules written by the user."""
