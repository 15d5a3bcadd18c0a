"""From a configuration to a finished run, several runs side by side, and how both are shown."""
