"""The channel between daemon and trainer: a shared page, a step ring, a socket pair.

Promises: no send ever blocks; no message is read in part; reports are taken strictly in the order of their numbers. A
report of another incarnation is dropped and counted.
"""

from tolariad.channel.packets import ChannelError
from tolariad.channel.page import Activity, Heartbeat, Page
from tolariad.channel.pair import DaemonEnd, Reports, TrainerEnd, channel_pair

__all__ = ["Activity", "ChannelError", "DaemonEnd", "Heartbeat", "Page", "Reports", "TrainerEnd", "channel_pair"]
