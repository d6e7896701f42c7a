"""The ranks: how they communicate, and how they train one model together."""
