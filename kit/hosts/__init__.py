"""Access to the hosts: commands over SSH, and the Engine API of their Docker."""
