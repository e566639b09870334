"""The tests. The locks of everything that they run check the order in which they are taken."""

from tests.support import lock_order

lock_order.install()
