"""Measures one host and its links. `kit bench` runs this program in a container on each host.

kit joins its modules to one file that needs no other file of the trainer, so it runs in any image
with Python; all measurements except links and disks also need PyTorch. Each line of input is a
request: a JSON object whose `do` names a function of `REQUESTS` and whose other keys are its
arguments. Each line of standard output is the answer, or `{"error": "…"}`. The program ends at the
end of its standard input.

Units are bytes, seconds and bits per second. `kit bench step` runs another program, steps.py.
"""
