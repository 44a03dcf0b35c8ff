"""Makes bundles: one kernel source, machine code for many targets. Read README.md first."""
