"""Texts as tokens: a tokenizer, documents packed one behind the other, windows of them."""
