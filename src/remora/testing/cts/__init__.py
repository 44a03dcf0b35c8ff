"""Conformance suites as library code: a stranger proves a carrier, session shell or driver with them."""
