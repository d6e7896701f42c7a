"""The contract of kit and the trainer: the keys of a job, and the events that containers print.

kit imports no other part of the trainer. It uses only the standard library, so it needs no torch.
"""
