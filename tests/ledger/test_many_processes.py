"""Many processes, and processes that are killed, never spend more than the budget and never lose a charge."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tacit import accounting as acc
from tacit.ledger import BudgetExceeded, Ledger


def start(address: str, count: int, begin: int, folder: Path) -> int:
    """A process that waits for a byte of the pipe ``begin``, then charges: a line with the number of each charge that
    was granted and one ``refused`` for each that was not."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        ledger = Ledger(address)
        os.read(begin, 1)  # all processes begin together
        with (folder / str(os.getpid())).open("w") as told:
            for _ in range(count):
                try:
                    charge = ledger.charge("people", acc.PureDP(0.01), delta=0.0, purpose="a count")
                except BudgetExceeded:
                    told.write("refused\n")
                    continue
                told.write(f"{charge.number}\n")
                charge.confirm()
        status = 0
    finally:
        os._exit(status)


def test_eight_processes_with_twenty_charges_get_exactly_the_fifty_that_fit(address, tmp_path):
    ledger = Ledger(address)
    ledger.register("people", epsilon=0.5, delta=0.0)
    begin, end = os.pipe()
    folder = tmp_path / "told"
    folder.mkdir()
    processes = [start(address, 20, begin, folder) for _ in range(8)]
    os.close(begin)
    os.write(end, b"........")
    os.close(end)
    assert [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes] == [0] * 8
    lines = [line for process in processes for line in (folder / str(process)).read_text().split()]
    granted = [line for line in lines if line != "refused"]
    assert len(granted) == len(set(granted)) == 50
    assert lines.count("refused") == 110
    assert {record.charge for record in ledger.history("people")} == set(granted)
    budget = ledger.budget("people")
    assert (budget.charges, budget.unconfirmed, budget.spent_epsilon, budget.left_epsilon) == (50, 0, 0.5, 0.0)
    ledger.verify().require()


def fork_and_charge(address: str) -> tuple[int, int]:
    """A child that charges until it is killed; its number, and a pipe with one line for each granted charge."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            ledger = Ledger(address)
            while True:
                charge = ledger.charge("people", acc.PureDP(0.01), delta=0.0)
                os.write(writing, f"{charge.number}\n".encode())
                charge.confirm()
        finally:
            os._exit(1)
    os.close(writing)
    return child, reading


def kill_at_random_points(address: str, points: int, seed: int) -> str:
    """Kill -9 two charging processes at random moments, again and again: every grant is there, the chain holds."""
    moments = random.Random(seed)
    ledger = Ledger(address)
    ledger.register("people", epsilon=1e6, delta=0.0)
    began = time.monotonic()
    granted = {ledger.charge("people", acc.PureDP(0.01), delta=0.0).number for _ in range(5)}
    usual = (time.monotonic() - began) / 5
    while_charging = 0
    for point in range(points):
        children = [fork_and_charge(address) for _ in range(2)]
        for child, reading in children:
            with open(reading) as pipe:
                # A few whole charges, so that a busy machine kills inside one as often, then a random time.
                first = [pipe.readline() for _ in range(moments.randrange(4))]
                time.sleep(moments.uniform(0.0, 2 * usual))
                os.kill(child, signal.SIGKILL)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
                lines = ("".join(first) + pipe.read()).split("\n")
            assert lines[-1] == ""  # no half-written acknowledgement
            while_charging += len(lines) > 1
            granted |= set(lines[:-1])
        if point % 25 == 24 or point == points - 1:
            recorded = {record.charge for record in ledger.history("people")}
            assert granted <= recorded
    ledger.verify().require()
    budget = ledger.budget("people")
    assert budget.charges == len(recorded)
    assert budget.spent_epsilon == pytest.approx(0.01 * len(recorded), rel=1e-12)
    # A charge may be recorded and its process killed before it could say so: counted too much, never too little.
    assert len(granted) <= len(recorded) <= len(granted) + 2 * points
    assert while_charging > points // 2
    return f"{2 * points} kills, {while_charging} after a grant; {len(granted)} acknowledged, {len(recorded)} recorded"


def test_a_killed_process_loses_no_charge(tmp_path):
    print(kill_at_random_points(str(tmp_path / "people.db"), points=25, seed=4))


@pytest.mark.slow
def test_five_hundred_kills_lose_no_charge(tmp_path):
    print(kill_at_random_points(str(tmp_path / "people.db"), points=500, seed=5))


@pytest.mark.slow
@pytest.mark.postgres
def test_fifty_kills_of_postgres_clients_lose_no_charge(postgres):
    print(kill_at_random_points(postgres.new_database(), points=50, seed=6))
