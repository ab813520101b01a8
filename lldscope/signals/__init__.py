"""From columns of numbers to detectors, evidence and phases: pure, causal, without I/O."""
