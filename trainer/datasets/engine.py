"""libtorrent, configured for known hosts: no tracker, DHT or search for peers.

Connected hosts exchange their peers (PEX), so that hosts do not need a complete list.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import libtorrent

from trainer.datasets.errors import MISTAKE, DataSetError
from trainer.datasets.layout import Place
from trainer.datasets.manifest import Manifest
from trainer.datasets.torrent import load_torrent
from trainer.store.files import replace_file

Key = tuple[str, int]
Address = tuple[str, int]

ALERTS = ("error", "status", "storage", "peer", "file_progress")
FIRST, LATER = 7, 1  # Priorities of pieces.
QUEUE = 128  # Pending requests of 16 KiB of one host at another.
FINISHED = 3  # libtorrent's block_info::finished.
PLAIN = 2  # libtorrent's pe_disabled: connections are not obfuscated.
SETTINGS: dict[str, Any] = {
    "user_agent": "kit",
    # No search for peers, and no requests to other networks.
    "enable_dht": False,
    "enable_lsd": False,
    "enable_upnp": False,
    "enable_natpmp": False,
    "dht_bootstrap_nodes": "",
    "webtorrent_stun_server": "",
    "ssrf_mitigation": False,  # The server's address is trusted, and may be a local one.
    "enable_incoming_utp": False,
    "enable_outgoing_utp": False,
    "in_enc_policy": PLAIN,
    "out_enc_policy": PLAIN,
    "rate_limit_ip_overhead": False,
    # Each host sends to all others that send requests.
    "choking_algorithm": 0,  # A fixed number of slots.
    "unchoke_slots_limit": 64,
    "connections_limit": 2000,
    "active_downloads": -1,
    "active_seeds": -1,
    "active_limit": -1,
    "allow_multiple_connections_per_ip": True,  # Agents of several hosts behind one address.
    # Hosts may return at any time; only hosts that fetch connect to others.
    "seeding_outgoing_connections": False,
    "min_reconnect_time": 2,
    "max_failcount": 1000,
    "peer_connect_timeout": 5,
    "handshake_timeout": 10,
    "peer_timeout": 30,
    "inactivity_timeout": 60,
    "connection_speed": 200,
    "smooth_connects": False,
    # The server is the last source: with a data set of a single file, one damaged piece would ban
    # it, and the fetch would never end.
    "ban_web_seeds": False,
    "urlseed_wait_retry": 3,
    "urlseed_timeout": 10,
    # Buffers for a fast network.
    "send_buffer_watermark": 3 * 2**20,
    "send_buffer_watermark_factor": 150,
    "send_buffer_low_watermark": 2**19,
    # Longer queues at the host with all pieces would contain pieces that others could send.
    "max_out_request_queue": QUEUE,
    "max_allowed_in_request_queue": QUEUE,
    "request_queue_time": 1,
    "whole_pieces_threshold": 0,
    "aio_threads": 4,
    "max_queued_disk_bytes": 2**26,
    "tick_interval": 100,
    "listen_system_port_fallback": False,
    "max_retry_port_bind": 0,
    "alert_queue_size": 50000,
}


@dataclass
class Torrent:
    """A version that this host offers, and may still fetch."""

    place: Place
    handle: libtorrent.torrent_handle
    error: str = ""
    failed_pieces: int = 0  # Arrived with a wrong hash; they are fetched again.
    flushed: int = 0  # Number of times that all received data was passed to the kernel.
    completed: set[int] = field(default_factory=set)
    """The files whose pieces have all arrived since the fetch began, by their index."""
    banned: set[str] = field(default_factory=set)
    """Peers that have sent wrong pieces."""
    share: tuple[int, int] = (0, 1)
    """The part of the pieces that this host requests first, and the number of parts."""

    @property
    def status(self) -> libtorrent.torrent_status:
        """The present state, without expensive fields."""
        return self.handle.status(0)

    def bittorrent_peers(self) -> list[libtorrent.peer_info]:
        """The connected peers, without the web server."""
        kind = libtorrent.peer_info.standard_bittorrent
        busy = libtorrent.peer_info.connecting | libtorrent.peer_info.handshake
        peers = self.handle.get_peer_info()
        return [each for each in peers if each.connection_type == kind and not each.flags & busy]

    def has_forgotten(self) -> bool:
        """Whether a piece has all of its blocks, and is neither accepted nor requested again.

        libtorrent sometimes leaves a damaged piece so until its torrent is added again
        (arvidn/libtorrent #3843; seen with 2.1.1).
        """
        queue = self.handle.get_download_queue()
        return any(all(each["state"] == FINISHED for each in piece["blocks"]) for piece in queue)

    def take_share(self) -> None:
        """First request pieces that no other host requests first.

        Otherwise several hosts get the same pieces from the host that has all, although they could
        get them from each other: with four hosts it would send each piece 1.6 times.
        """
        peers = self.bittorrent_peers()
        fetching = [peer for peer in peers if not peer.flags & libtorrent.peer_info.seed]
        own = {peer.local_endpoint()[0] for peer in peers}
        addresses = sorted({peer.ip[0] for peer in fetching} | own)
        share = (addresses.index(min(own)), len(addresses)) if fetching else (0, 1)
        if share != self.share:
            self.share = share
            part, parts = share
            count = len(self.handle.get_piece_priorities())
            order = [FIRST if index % parts == part else LATER for index in range(count)]
            self.handle.prioritize_pieces(order)

    def take_in_order(self) -> None:
        """Fetch the files in order if no other host fetches, so that they can be hashed early."""
        order = libtorrent.torrent_flags.sequential_download
        self.handle.set_flags(order if self.share[1] == 1 else 0, order)


class Engine:
    """The torrents of this host. Call `poll` several times a second."""

    def __init__(self, address: str, port: int) -> None:
        """Listen, by default on all addresses; raises DataSetError."""
        own = f"[{address}]" if ":" in address else address
        hosts = [own] if own else ["0.0.0.0", "[::]"]
        mask = 0
        for name in ALERTS:
            mask |= getattr(libtorrent.alert_category, name)
        listen = ",".join(f"{host}:{port}" for host in hosts)
        outgoing = {"outgoing_interfaces": address} if address else {}
        settings = {**SETTINGS, **outgoing, "listen_interfaces": listen, "alert_mask": mask}
        self._session = libtorrent.session(settings)  # type: ignore[call-overload]
        self.torrents: dict[Key, Torrent] = {}
        self._require_listening(port)

    def _require_listening(self, port: int) -> None:
        deadline, reason = time.monotonic() + 10, "no answer"
        while time.monotonic() < deadline:
            self._session.wait_for_alert(200)
            for alert in self._session.pop_alerts():
                if isinstance(alert, libtorrent.listen_succeeded_alert):
                    return
                if isinstance(alert, libtorrent.listen_failed_alert):
                    reason = alert.message()
            if reason != "no answer" and not self._session.is_listening():
                break
        fix = "end what uses it, or give another --port"
        raise DataSetError(f"port {port} cannot be used ({reason})", fix, MISTAKE)

    def seed(self, place: Place, manifest: Manifest) -> None:
        """Offer a complete version; each piece is checked before it is sent the first time."""
        params = load_torrent(place.torrent.read_bytes(), manifest)
        self._add(place, params, libtorrent.torrent_flags.seed_mode)

    def fetch(self, place: Place, manifest: Manifest, peers: Iterable[Address]) -> Torrent:
        """Fetch a version, continuing the last try, after `handle.resume`."""
        params = load_torrent(place.torrent.read_bytes(), manifest)
        if (file := place.folder / "resume").exists():
            try:
                kept = libtorrent.read_resume_data(file.read_bytes())
            except RuntimeError:
                file.unlink()  # Existing pieces are hashed instead.
            else:
                kept.ti, params = params.ti, kept
        # Peers that are added before it resumes are connected at once, not at the next second.
        torrent = self._add(place, params, libtorrent.torrent_flags.paused)
        for peer in peers:
            torrent.handle.connect_peer(peer)
        return torrent

    def _add(self, place: Place, params: libtorrent.add_torrent_params, flags: int) -> Torrent:
        own = libtorrent.torrent_flags
        params.save_path = str(place.folder)
        params.flags = flags | own.disable_dht | own.disable_lsd
        torrent = Torrent(place, self._session.add_torrent(params))
        self.torrents[place.key] = torrent
        return torrent

    def stop(self, key: Key) -> None:
        """Stop offering or fetching a version; keep its files."""
        if torrent := self.torrents.pop(key, None):
            self._session.remove_torrent(torrent.handle)

    def poll(self) -> None:
        """Process libtorrent's alerts."""
        for alert in self._session.pop_alerts():
            if isinstance(alert, libtorrent.torrent_alert) and alert.handle.is_valid():
                for torrent in self.torrents.values():
                    if torrent.handle == alert.handle:
                        self._process(torrent, alert)

    def _process(self, torrent: Torrent, alert: libtorrent.torrent_alert) -> None:
        if isinstance(alert, libtorrent.hash_failed_alert):
            torrent.failed_pieces += 1
        elif isinstance(alert, libtorrent.peer_ban_alert):
            torrent.banned.add(alert.endpoint[0])
        elif isinstance(alert, libtorrent.file_completed_alert):
            torrent.completed.add(alert.index)
        elif isinstance(alert, libtorrent.cache_flushed_alert):
            torrent.flushed += 1
        elif isinstance(alert, libtorrent.torrent_error_alert | libtorrent.file_error_alert):
            torrent.error = alert.message()
        elif isinstance(alert, libtorrent.save_resume_data_alert):
            self._keep(torrent.place, alert.params)

    def _keep(self, place: Place, params: libtorrent.add_torrent_params) -> None:
        if not place.complete and place.folder.is_dir():
            params.url_seeds = []  # They contain the key.
            content = libtorrent.bencode(libtorrent.write_resume_data(params))
            replace_file(place.folder / "resume", content, durable=False)

    def save(self) -> None:
        """Request the state of fetches: `poll` writes it when it arrives."""
        flags = libtorrent.torrent_handle
        for torrent in self.torrents.values():
            if not torrent.place.complete and torrent.handle.is_valid():
                torrent.handle.save_resume_data(flags.flush_disk_cache | flags.only_if_modified)
