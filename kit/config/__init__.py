"""From the files that people write to `kit.model`, with every mistake answered at its line."""
