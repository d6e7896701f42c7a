"""`kit doctor`: what is wrong with the hosts, before a job meets it."""
