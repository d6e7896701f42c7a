"""Hosts that train together: which they are, and how they learn it.

    server.py ── serves the hosts of one job: the coordinator
      │ decisions.py ── which hosts train together, and what each must do
      │ knowledge.py ── what it knows of them: their reports, and the present group
      │ TCP, JSON lines: reports of hosts, orders of the coordinator (messages.py)
    agent ── one on each host

The built-in training (trainer/elastic/) and the rounds of a script (trainer/launcher/) have this
protocol; they differ in the driver on each host, in `Times`, and in the rules that
launcher/rounds.py adds. Standard library only: it is also a part of the launcher's one file.
"""
