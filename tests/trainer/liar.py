"""A peer that sends wrong bytes: it does not check the hashes of its files.

python -m tests.trainer.liar dataset.torrent FOLDER
"""

import sys
import time

import libtorrent

from trainer.datasets.engine import SETTINGS

session = libtorrent.session(
    {**SETTINGS, "listen_interfaces": "127.0.0.3:0", "disable_hash_checks": True}  # type: ignore[call-overload]
)
params = libtorrent.load_torrent_file(sys.argv[1])
params.save_path = sys.argv[2]
params.flags = libtorrent.torrent_flags.seed_mode
session.add_torrent(params)
while not session.listen_port():
    time.sleep(0.1)
print(f"lies at {session.listen_port()}", flush=True)
while True:
    time.sleep(1)
