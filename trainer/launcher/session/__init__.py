"""Sessions: containers in which people work, until their time is over or they are unused."""
