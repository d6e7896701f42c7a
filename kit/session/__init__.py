"""Sessions, in which people work: their files here, and the ways into their containers."""
