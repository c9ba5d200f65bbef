"""The Unix socket: Varlink protocol, server, client.

Importing the room loads nothing: `server` and what it needs use asyncio, `client` does not, so a reading command stays
light. It must not know: the daemon (it meets it through `port`), the supervisor, the trainer.
"""
