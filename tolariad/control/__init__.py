"""The Unix socket: Varlink protocol, server, client.

Importing the package loads nothing. `server` and its modules use asyncio; `client` does not, so that a command that
only reads starts quickly. The daemon is reached through the Protocol `ControlPort` in `methods`.
"""
