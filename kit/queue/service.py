"""The controller of the queue as a systemd service of hosts. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from kit.model import Host

OLDEST = (3, 11)
"""The oldest Python that kit runs with."""
UNIT = "kit-queue"
"""The name of the service, and its prefix on a host that may have several."""
UNIT_TEXT = """\
# Written by `kit queue up`: the controller of the queue. Running jobs continue without it.
[Unit]
Description=Controller of kit's queue
After=docker.service

[Service]
ExecStart=/usr/bin/python3 @PROGRAM@
Restart=always
RestartSec=2
NoNewPrivileges=yes
PrivateTmp=yes
@MORE@

[Install]
WantedBy=multi-user.target
"""
ROOT = 'root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }'
ALONE = "ProtectSystem=strict\\nProtectHome=yes"
AS_LOGIN = "User=$(id -un)"
"""Lines of the unit: of a controller that uses only its host's Docker, and of one that logs in."""
CHECK = """\
{0} -o BatchMode=yes -o ConnectTimeout=10 docker version </dev/null >/dev/null || {{
    echo 'the controller cannot reach a host; on this one, try: {0} docker version' >&2; exit 1; }}
"""
"""Checks that its host reaches the engine of another host."""
UP = f"""set -eu
{ROOT}
python3 -c 'import sys; sys.exit(sys.version_info < {OLDEST})' 2>/dev/null || {{
    echo 'needs Python {OLDEST[0]}.{OLDEST[1]} or newer as python3' >&2; exit 1; }}
python3 -c 'import zoneinfo; zoneinfo.ZoneInfo("Europe/Berlin")' 2>/dev/null || {{
    echo 'lacks the time zones: install tzdata' >&2; exit 1; }}
command -v systemctl >/dev/null || {{
    echo 'has no systemd: start `kit queue run` there in another way' >&2; exit 1; }}
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cat >"$work/queue.pyz"
cat >"$work/unit.in" <<'END'
{UNIT_TEXT}END
sed -e "s|@MORE@|$more|; s|@PROGRAM@|$program|" "$work/unit.in" >"$work/unit"
if cmp -s "$work/queue.pyz" "$program" && cmp -s "$work/unit" "$file" \\
    && systemctl is-active --quiet "$unit"; then
    echo unchanged; exit
fi
root install -D -m 644 "$work/queue.pyz" "$program"
root install -D -m 644 "$work/unit" "$file"
root systemctl daemon-reload
root systemctl enable --quiet "$unit"
root systemctl restart "$unit"
"""
"""Installs and starts the service; standard input is the program. `more` are lines of the unit, and
`unit`, `program` and `file` are its names."""
DOWN = f"""set -eu
{ROOT}
if [ ! -e "$file" ]; then echo unchanged; exit; fi
root systemctl disable --now --quiet "$unit"
root rm -f "$file" "$program"
root systemctl daemon-reload
"""


@dataclass(frozen=True, slots=True)
class Service:
    """Where the controller of a target's queue runs: its `hosts`, and how it is called there.

    `call` is a Python expression in the imported `module`. `logins` are ssh commands with which it
    logs in to hosts, with the keys of its host's own login. Without logins, it uses only Docker of
    its host. `unit` is its name for systemd.
    """

    hosts: tuple[Host, ...]
    module: str
    call: str
    logins: tuple[str, ...] = ()
    unit: str = UNIT

    @property
    def _names(self) -> str:
        program, file = f"/usr/local/lib/kit/{self.unit}.pyz", f"/etc/systemd/system/{self.unit}"
        return f"unit={self.unit}.service program={program} file={file}.service\n"

    @property
    def up(self) -> str:
        """The script that installs and starts it."""
        checks = "".join(map(CHECK.format, self.logins))
        more = f'more="{AS_LOGIN if self.logins else ALONE}"\n'
        return f"{checks}{self._names}{more}{UP}"

    @property
    def down(self) -> str:
        """The script that removes it."""
        return self._names + DOWN
