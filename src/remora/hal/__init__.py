"""The hardware abstraction: what a device is, whether it is in this process or behind a link. Read README.md first."""
