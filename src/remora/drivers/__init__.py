"""Drivers: each opens devices of one kind. Read README.md first."""
