"""Measures this machine's floors and remora beside each other, in one run. Read README.md first."""
