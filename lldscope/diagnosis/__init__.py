"""From the signals of a run to evidence, causes, phases and alarms: pure, causal, without I/O."""
