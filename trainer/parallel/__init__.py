"""The ranks: what they tell each other, and how they train one model together."""
