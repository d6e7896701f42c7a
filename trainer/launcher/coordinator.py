"""The coordinator of a built-in training."""

import os
import signal

from trainer.launcher.network import listen, own_address
from trainer.launcher.output import say
from trainer.launcher.process import raise_open_files, stay_unprivileged
from trainer.launcher.settings import endpoint_text, parse_endpoint, read_nnodes, read_variable


def coordinate() -> int:
    """Serve the coordinator, only at its own address, until its run is over or a signal arrives."""
    stay_unprivileged()
    raise_open_files()  # Each host holds a connection.
    from trainer.elastic.coordinator import serve

    host, port = parse_endpoint(read_variable(os.environ, "KIT_RENDEZVOUS"))
    hosts = read_nnodes(os.environ)
    address = own_address([host])
    listener = listen(address, port)
    say(f"serves the coordinator on {endpoint_text((address, port))}")
    received = serve(listener, hosts, say)
    reason = signal.Signals(received).name if received else "the end of its run"
    say(f"ends the coordinator on {reason}")
    return 0
