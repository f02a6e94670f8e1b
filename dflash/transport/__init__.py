"""Carries hidden states from targets to drafters: queue × path × dispatch, see docs/transports.md."""

from dflash.transport.transport import Transport, open_transport

__all__ = ["Transport", "open_transport"]
