"""The protocol as a machine: bytes and the time in, events and bytes out. No socket, no clock, no lock. Read README.md first."""
