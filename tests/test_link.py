"""The link of known bandwidth: made, throttled, measured by a bare socket, gone."""

from __future__ import annotations

import subprocess

import pytest

from experiments import known_link
from xlacompare.core import errors
from xlacompare.launch import link as links

needs_link = pytest.mark.skipif(links.why_not() is not None, reason=f"needs a link: {links.why_not()}")


def namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout


@needs_link
@pytest.mark.quiet
def test_a_bare_socket_sees_the_rate_and_its_change():
    with links.link(2, "200mbit") as link:
        slow = [min(both) for both in known_link.bare_socket(link)]
        link.throttle("400mbit")
        fast = [min(both) for both in known_link.bare_socket(link)]
    # 1448 of 1514 bytes of a frame are data; what the bursts let pass and a busy machine loses is far below a factor 2.
    assert 1.5 < max(fast) / max(slow) < 2.6
    assert max(slow) * 8 < 1.1 * 200e6
    assert not any(name in namespaces() for name in (*link.names, link.hub))
    assert not any((links.NETNS_ETC / name).exists() for name in link.names)


@needs_link
def test_half_a_link_is_removed_too(monkeypatch):
    def refuse(self: links.Link, rate: str) -> None:
        raise errors.UnsupportedError("no throttle today")

    monkeypatch.setattr(links.Link, "throttle", refuse)
    names = [*links.Link(2, "1gbit").names, links.Link(2, "1gbit").hub]
    with pytest.raises(errors.UnsupportedError), links.link(2, "1gbit"):
        pass
    assert not any(name in namespaces() for name in names)


def test_without_root_the_reason_is_said(monkeypatch):
    monkeypatch.setattr(links.os, "geteuid", lambda: 1000)
    assert "root" in str(links.why_not()) or "not found" in str(links.why_not())
    with pytest.raises(errors.UnsupportedError, match="known bandwidth"), links.link(2, "1gbit"):
        pass


def test_the_fit_takes_latency_apart_from_bandwidth():
    def record(size: int) -> dict:
        seconds = 3e-3 + 2 * (3 - 1) / 3 * size / 25e6
        return {
            "status": "ok",
            "cell": {"size_bytes": size},
            "blocks": {"total_s": [2 * seconds, 4 * seconds], "n": [2, 4]},
        }

    assert known_link.fitted([record(size << 20) for size in (2, 4, 8, 16)], 3) == pytest.approx(25e6)
