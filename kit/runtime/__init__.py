"""Code that all targets share: steps, status, history, events, log streams, the GPU proof."""
