"""The workload: jobs and servers as parts. A part describes equal containers for any target."""
