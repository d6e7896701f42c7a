"""What the rendered tree tells of the hosts.

Commands that end or show jobs read the tree and not the inventory: a slip in that must not keep one
from `kit stop`.
"""

from __future__ import annotations

import json
from pathlib import Path

from kit.errors import InputError
from kit.model import Host


def hosts_of(tree: Path) -> tuple[Host, ...]:
    """Return the hosts that the tree was rendered for, without their GPUs.

    Raises:
        InputError: There is no such tree.
    """
    path = tree / "plan.json"
    try:
        hosts = json.loads(path.read_text(encoding="utf-8"))["hosts"]
        return tuple(
            Host(
                name=host["name"],
                address=host["address"],
                ssh=host["ssh"],
                roles=tuple(host["roles"]),
                gpus=(),
                interface=None,
                speed=host["speed"],
                loc=("hosts", host["name"]),
            )
            for host in hosts
        )
    except FileNotFoundError:
        raise InputError(f"{path} is not there", "run `kit render`") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{path} is not what kit renders", "run `kit render`") from None


def managers_of(hosts: tuple[Host, ...]) -> tuple[Host, ...]:
    """Return the hosts with the role manager; all where none has it (there is one)."""
    return tuple(host for host in hosts if "manager" in host.roles) or hosts
