"""How well alarms do on runs whose end is known."""
