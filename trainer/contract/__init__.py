"""What kit and the trainer agree on: the keys of a job, and the events that containers print.

The one part of the trainer that kit imports; of the standard library alone, so it needs no torch.
"""
