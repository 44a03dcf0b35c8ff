"""The one shell around a session: carriers, the clock, locks and threads. Read README.md first."""
