"""Discovery: ask the hosts for their hardware and software, and update the inventory."""
