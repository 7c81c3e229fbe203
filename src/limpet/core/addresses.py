"""The address that a server of ours listens at, and who can reach it."""

from __future__ import annotations

import ipaddress
import socket

__all__ = ["in_url", "is_loopback", "listen"]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach *host*."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at *host*, of IPv4 or IPv6; port 0 is a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def in_url(host: str) -> str:
    """*host* as URLs have it."""
    return f"[{host}]" if ":" in host else host
