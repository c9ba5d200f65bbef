"""How the trainer receives orders, reports, and waits, in five parts that are independent of each other.

`Reporter` sends reports and heartbeats. `OrderInbox` holds the orders that arrived, with the table of which order may
be obeyed where. `Gate` decides when the next update may begin. `Boundary` obeys orders between two steps.
`BoundaryOrders` numbers and answers those that change what training computes. `Link` puts the first three together over
the trainer's end of the channel.
"""

from tolariad.trainer.orders.boundary import Boundary
from tolariad.trainer.orders.gate import Link
from tolariad.trainer.orders.inbox import IDLE_S
from tolariad.trainer.orders.numbered import BoundaryOrders, Kind, OrderRefused

__all__ = ["IDLE_S", "Boundary", "BoundaryOrders", "Kind", "Link", "OrderRefused"]
