"""One file of bytes for each message of the wire, and the values they stand for."""
