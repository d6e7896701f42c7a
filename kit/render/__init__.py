"""From a lowered plan to files, by templates."""
