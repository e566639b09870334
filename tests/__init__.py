"""The tests. `support/lock_order.py` lets the locks of what they run check the order in which they are taken."""

from tests.support import lock_order

lock_order.install()
