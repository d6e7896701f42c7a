"""Texts as tokens: a tokenizer, concatenated documents, windows of tokens."""
