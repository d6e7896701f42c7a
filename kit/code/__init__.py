"""The folder with a job's code: the files that are sent to the hosts, and their archive."""
