"""Between daemon and trainer: a shared page, a socket pair, incarnations, bounds.

Promises: no send ever blocks, nothing is read half, reports are taken strictly in the order of their running number, and
what belongs to another incarnation is dropped and counted. It must not know: what an order or a report means.
"""

from tolariad.channel.packets import ChannelError
from tolariad.channel.page import Activity, Heartbeat, Page
from tolariad.channel.pair import DaemonEnd, Reports, TrainerEnd, channel_pair

__all__ = [
    "Activity",
    "ChannelError",
    "DaemonEnd",
    "Heartbeat",
    "Page",
    "Reports",
    "TrainerEnd",
    "channel_pair",
]
