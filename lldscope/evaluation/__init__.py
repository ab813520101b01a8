"""How well the alarms do on runs whose outcome is known."""
