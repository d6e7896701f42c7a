"""Group membership: the coordinator decides which hosts train together, and orders them to.

    server.py ── the coordinator: serves the hosts of one job
      │ decisions.py ── decides which hosts train together, and what each must do
      │ knowledge.py ── its state: the hosts' reports, and the present group
      │ TCP, JSON lines: reports of hosts, orders of the coordinator (messages.py)
    agent ── one on each host

The built-in training (trainer/elastic/) and the rounds of a script (trainer/launcher/) use this
protocol; they differ in the driver on each host, in `Times`, and in the rules that
launcher/rounds.py adds. Standard library only: it is also a part of the launcher's one file.
"""
