"""Speed as ratios within one run on one machine; each module is a command that prints JSON lines."""
