"""The `remora` command. Read README.md first."""
