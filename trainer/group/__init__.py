"""Hosts that train together: which they are, and how they learn it.

    server.py ── serves the hosts of one job: the coordinator
      │ decisions.py ── which hosts train together, and what each shall do
      │ TCP, JSON lines: reports of hosts, orders of the coordinator (messages.py)
    agent ── one on each host

Standard library only.
"""
