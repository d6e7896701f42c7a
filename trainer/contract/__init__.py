"""The contract of kit and the trainer: the keys of a job, and the events that containers print.

The one part of the trainer that kit imports; of the standard library alone, so it needs no torch.
"""
