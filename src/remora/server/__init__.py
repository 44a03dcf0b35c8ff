"""The process that owns devices. Names no driver: it opens URIs. Read README.md first."""
