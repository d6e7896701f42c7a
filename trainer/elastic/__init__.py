"""Training whose process group changes while its processes keep running.

    coordinator ── one for each job; decides which hosts train together (trainer/group/)
      │ TCP, JSON lines: reports of hosts, orders of the coordinator (group/messages.py)
    agent ── one on each host; starts the workers, watches them, and reports
      │ Unix socket, JSON lines
    worker ── one for each GPU (trainer/train.py); its side is membership.py

When a worker or a host is lost, the other workers close the connections of their group, form the
next one, agree on one state (core/live_state.py) and continue. A worker that comes back starts
while the others train; then they leave their group at the end of a step and form one with it.
Neither coordinator nor agents import torch. A group that has been formed needs no coordinator until
its next change.
"""
