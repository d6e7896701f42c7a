"""The plan: every decision, as a pure function of the inventory and the jobs."""
