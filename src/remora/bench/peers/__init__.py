"""Peers on the same work: who they are, their environments, and how they are asked. Read README.md first."""
