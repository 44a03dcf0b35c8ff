"""Tools to test code that talks over a link, and the conformance suites. Public, and needs pytest only for the suites."""
