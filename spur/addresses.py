"""HOST:PORT, as the configuration and the command lines write it; an IPv6 address stands in brackets."""

from __future__ import annotations


def split(address: str) -> tuple[str, int]:
    """Host and port. ValueError: it is not HOST:PORT."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65535:
        raise ValueError(f'is "{address[:80]}", not HOST:PORT')
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f'is "{address[:80]}": an IPv6 address is written [ADDRESS]:PORT')
    return host, int(port)


def join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine reach `host`. A name other than localhost counts as reachable."""
    if host == "localhost":
        return True
    import ipaddress  # only daemons, and clusters without tokens, ask

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Whether `host` means every address of the machine, so that nobody can call it by it."""
    return host in ("0.0.0.0", "::")
