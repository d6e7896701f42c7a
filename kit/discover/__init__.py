"""What the hosts are: asked over SSH, and written into the inventory."""
