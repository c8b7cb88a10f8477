"""Who may be posted to: hosts by name at public addresses, and what lies in a listed network."""

import pytest

from advisor.protocol.asked.webhook import hide_path
from advisor.services.webhooks.receivers import Receivers

LISTED = Receivers.of(["Hooks.example.com", "10.1.0.0/16", "127.0.0.1", "fd00::/8"])


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example.com/a?b=c",
        "https://HOOKS.example.com:8443/",
        "https://hooks.example.com./",
        "http://10.1.2.3/x",
        "http://127.0.0.1:9/x",
        "https://[fd00::1]/x",
        "http://[::ffff:10.1.2.3]/x",
    ],
)
def test_listed_host_is_let_in(url: str) -> None:
    assert LISTED.explain_refusal(url) == ""


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://evil.example.com/", "does not list evil.example.com"),
        ("https://hooks.example.com.evil.com/", "does not list"),
        ("https://hooks.example.com@evil.com/", "neither a user"),
        ("https://evil.com#@hooks.example.com/", "neither a user"),
        ("http://hooks.example.com/", "must begin with https://"),
        ("ftp://hooks.example.com/", "must begin with https://"),
        ("file:///etc/passwd", "must name a host"),
        ("hooks.example.com", "must name a host"),
        ("https://xn--/", "is no URL"),
        ("https://xn--zzzzzz99999/", "is no URL"),
        ("http://10.2.0.1/", "does not list the address"),
        ("https://169.254.169.254/latest", "does not list the address"),
        ("http://[::1]/", "does not list the address"),
        ("http://[::ffff:169.254.169.254]/", "does not list the address"),
        ("http://2130706433/", "must begin with https://"),
        ("https://127.1/", "does not list"),
        ("https://0x7f000001/", "does not list"),
        ("https://hooks.example.com:99999/", "a port that there is not"),
        ("https://hooks.example.com/********", "hidden value"),
        ("https://hooks.example.com/" + 2000 * "a", "more than 2000 characters"),
    ],
)
def test_anything_else_is_refused_with_a_sentence(url: str, said: str) -> None:
    assert said in LISTED.explain_refusal(url)


def test_nothing_is_let_in_where_nothing_is_listed() -> None:
    assert "does not list" in Receivers().explain_refusal("https://hooks.example.com/")


@pytest.mark.parametrize(
    ("address", "may"),
    [
        ("93.184.215.14", True),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", True),
        ("10.1.9.9", True),
        ("10.2.0.1", False),
        ("127.0.0.2", False),
        ("169.254.169.254", False),
        ("192.168.0.1", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fe80::1", False),
        ("fe80::1%eth0", False),
        ("::ffff:192.168.0.1", False),
        ("64:ff9b::c0a8:1", False),
        ("64:ff9b::5db8:d70e", True),
        ("2002:c0a8:1::1", False),
        ("no address", False),
    ],
)
def test_name_may_lead_to_public_addresses_and_listed_networks_only(address: str, may: bool) -> None:
    assert LISTED.choose([address]) == (address if may else None)


def test_first_address_that_may_be_is_taken() -> None:
    assert LISTED.choose(["127.0.0.2", "10.1.0.1", "93.184.215.14"]) == "10.1.0.1"
    assert LISTED.choose([]) is None


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://hooks.example.com:8443/a/b?c=d", "https://hooks.example.com:8443/********"),
        ("https://user:secret@hooks.example.com", "https://hooks.example.com/********"),
        ("https://[", "********"),
    ],
)
def test_only_the_host_is_shown(url: str, shown: str) -> None:
    assert hide_path(url) == shown


def test_addresses_of_a_site_are_not_public() -> None:
    assert LISTED.choose(["fec0::1"]) is None
