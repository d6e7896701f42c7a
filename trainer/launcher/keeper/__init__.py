"""Keeps versions of the files that a script writes, and copies the newest to every host.

    python3 keeper.py       started by launch.py beside torchrun, for `checkpoint: {files: …}`

kit joins the modules of this program to one file, as those of the launcher, and mounts it beside
launch.py.

    KIT_HOST          this host's name
    KIT_CHECKPOINTS   folder of checkpoints; the versions of a host are in versions/HOST below it
    KIT_FILES         the script's files, a JSON list; relative ones begin at the working folder
    KIT_KEEP          number of versions that each host keeps
    KIT_KEEPER        Unix socket at which the workers of this host wait before their script starts
    KIT_SAVED         file that gets a name of the content of each version that this host makes
    KIT_FILES_AT      address of this host at which the other hosts fetch versions

While the script runs, a complete file that has changed becomes a version, and each host passes it
on to the next. Before each start of the workers, the keepers of all hosts meet at the address that
the round has for the script's own store, MASTER_ADDR and MASTER_PORT, which is still free.
There they agree on the newest version; hosts that lack it fetch it, and put it in place.

The keeper ends when its standard input closes, at the end of the agent.
"""
