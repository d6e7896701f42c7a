"""Asks a host's data agent: `python3 ask.py FOLDER METHOD PATH [BODY]` prints its answer.

`kit` passes this text to `python3 -c` in the agent's container. It uses only the standard library
and Python 3.10. A socket's path has at most 107 bytes (unix(7)), so it is reached through the
descriptor of its folder.
"""

import json
import os
import socket
import sys
from http.client import HTTPConnection, HTTPException

SOCKET = "agent.sock"


class Connection(HTTPConnection):
    """HTTP over the agent's socket in a folder."""

    def __init__(self, folder: str) -> None:
        super().__init__("agent")
        self._folder = folder

    def connect(self) -> None:
        """Connect to the socket."""
        descriptor = os.open(self._folder, os.O_PATH)
        try:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.connect(f"/proc/self/fd/{descriptor}/{SOCKET}")
        finally:
            os.close(descriptor)


def main() -> int:
    """Send the request and print the lines of the answer.

    The agent keeps the answer to /use open: the data sets are in use until this program ends.
    """
    folder, method, path, *body = sys.argv[1:]
    connection = Connection(folder)
    try:
        connection.request(method, path, body[0] if body else None)
        response = connection.getresponse()
        if response.status >= 400:
            refused = json.loads(response.read())
            return fail(refused["error"], refused["fix"])
        for line in response:
            answer = json.loads(line)
            say(answer)
            if isinstance(answer, dict) and answer.get("state") in {"ready", "failed"}:
                return 0 if answer["state"] == "ready" else 1
    except OSError as error:
        return fail(f"the data agent does not answer: {error.strerror or error}", "", absent=True)
    except (ValueError, LookupError, HTTPException) as error:
        return fail(f"the data agent has sent an unknown answer: {error}", "")
    return 0


def fail(message: str, fix: str, *, absent: bool = False) -> int:
    """Print a failure and return the exit status; `absent`: the agent does not run."""
    say({"state": "failed", "message": message, "fix": fix, "absent": absent})
    return 1


def say(value: object) -> None:
    """Print a value as a line of JSON."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
