"""The endpoint that tests of this room talk to."""

from tests.standins.endpoint_server import environment, server, waits

__all__ = ["environment", "server", "waits"]
