"""What a running ε must state: at every moment, for all orders together."""

from __future__ import annotations

import math

import pytest

from tacit import accounting as acc


@pytest.mark.parametrize("noise", [2.0, 5.0])
def test_orders_of_an_odometer_share_delta(noise: float) -> None:
    """Each of k orders fails with δ/k: that costs log k/(α - 1) more than the order with all of δ."""
    orders, delta = (4.0, 8.0, 16.0), 1e-3
    alone = [acc.RenyiOdometer(delta, [order]).spend(acc.Gaussian(noise)) for order in orders]
    least = min(one + math.log(len(orders)) / (order - 1) for one, order in zip(alone, orders, strict=True))
    assert acc.RenyiOdometer(delta, orders).spend(acc.Gaussian(noise)) >= least * (1 - 1e-9)
