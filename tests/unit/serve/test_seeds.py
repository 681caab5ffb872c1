"""The seed of a request: its own, else the server's, else a random one."""

from __future__ import annotations

from typing import Any

from omni_cli.config.loader import load_profile
from omni_cli.serve.exchange import SEED, Exchange
from omni_cli.serve.limits import ServerSettings
from omni_cli.serve.service import Service


def choose(wanted: int | None, seed: int | None) -> tuple[int, Exchange]:
    unused: Any = None
    service = Service(load_profile("tiny-image"), unused, ServerSettings(seed=seed), unused, unused)
    exchange = Exchange("r", "POST", "/", None, 0.0, 60.0)
    return service.choose_seed(wanted, exchange), exchange


def test_the_request_s_own_comes_first() -> None:
    seed, exchange = choose(0, 7)
    assert seed == 0 and exchange.headers[SEED] == "0" and exchange.notes["seed"] == 0


def test_then_the_server_s() -> None:
    assert [choose(None, 0)[0], choose(None, 7)[0]] == [0, 7]


def test_else_one_of_its_own() -> None:
    assert len({choose(None, None)[0] for _ in range(8)}) > 1
