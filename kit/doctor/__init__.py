"""`kit doctor`: find faults of the hosts before a job fails because of them."""
