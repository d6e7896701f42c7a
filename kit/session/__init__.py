"""Sessions, in which people work: their files here, and the access to their containers."""
