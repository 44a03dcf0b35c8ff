"""Bytes to messages and back. Every decoder checks lengths, padding, flags and reserved bytes (H25). Read README.md first."""
