"""URLs, and proxies from the environment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import ConfigError, ProviderError
from dragoman.http.url_and_proxy import Address, Proxies, Proxy, parse_url, proxies_from

PROXY = Proxy(Address("http", "proxy.test", 3128))
SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "address", "authority", "target"),
    [
        ("https://api.test/v1/chat", Address("https", "api.test", 443), "api.test", "/v1/chat"),
        ("http://API.test:80", Address("http", "api.test", 80), "api.test", "/"),
        ("http://api.test:8080?a=b&c", Address("http", "api.test", 8080), "api.test:8080", "/?a=b&c"),
        ("https://[::1]:9000/x#part", Address("https", "::1", 9000), "[::1]:9000", "/x"),
        ("http://ä.test/ä/%20", Address("http", "xn--4ca.test", 80), "xn--4ca.test", "/%C3%A4/%20"),
    ],
)
def test_a_url_names_a_server_and_a_target(url: str, address: Address, authority: str, target: str) -> None:
    assert parse_url(url) == (address, target)
    assert address.authority == authority


@pytest.mark.parametrize(
    "url",
    [
        "",
        "api.test/v1",
        "ftp://api.test",
        "http://",
        "http:///v1",
        "http://api.test:port/",
        "http://api.test:99999/",
        "http://api.test:0/",
        "http://[::1/",
        "http://a b/",
        "http://api.test/\r\nx: y",
        f"http://{'a' * 64}.ü/",
        f"http://user:{SECRET}@api.test/",
    ],
)
def test_what_is_no_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ProviderError) as caught:
        parse_url(f"{url}?key={SECRET}")
    assert (caught.value.category, caught.value.transient) == ("bad_request", False)
    assert SECRET not in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_is_a_url_that_can_be_sent_or_is_refused(text: str) -> None:
    for url in (text, f"http://{text}", f"http://api.test/{text}"):
        try:
            address, target = parse_url(url)
        except ProviderError:
            continue
        line = f"GET {target} HTTP/1.1"
        assert line.isascii()
        assert line.isprintable()
        assert line.count(" ") == 2
        assert address.authority.isascii()


def test_proxies_come_from_the_environment_lower_case_first() -> None:
    environ = {
        "HTTP_PROXY": "http://upper.test",
        "http_proxy": "proxy.test:3128",
        "HTTPS_PROXY": f"https://us%40er:{SECRET}@[::2]:8443/",
        "NO_PROXY": " .Inner.test , 10.0.0.0/8,,",
    }
    proxies = proxies_from(environ)
    assert proxies == Proxies(
        http=PROXY,
        https=Proxy(Address("https", "::2", 8443), "Basic dXNAZXI6aHVudGVyMg=="),
        no_proxy=(".inner.test", "10.0.0.0/8"),
    )
    assert "dXNAZXI6aHVudGVyMg" not in repr(proxies)
    assert proxies_from({}) == Proxies()


@pytest.mark.parametrize(
    "value", [f"socks5://u:{SECRET}@p.test:1080", f"http://u:{SECRET}@:80", "http://a b"]
)
def test_a_proxy_that_cannot_be_used_is_named_but_not_shown(value: str) -> None:
    with pytest.raises(ConfigError, match="HTTPS_PROXY") as caught:
        proxies_from({"https_proxy": value})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("rules", "host", "exempt"),
    [
        ("", "api.test", False),
        ("*", "api.test", True),
        ("api.test", "api.test", True),
        ("api.test", "v1.api.test", True),
        ("api.test", "myapi.test", False),
        (".api.test", "v1.api.test", True),
        ("*.api.test", "v1.api.test", True),
        ("api.test:443", "api.test", True),
        ("api.test:8443", "api.test", False),
        ("other.test,api.test", "api.test", True),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("10.0.0.0/8", "api.test", False),
        ("10.0.0.0/99", "10.1.2.3", False),
        ("192.168.1.1", "192.168.1.1", True),
        ("[fd00::1]", "fd00::1", True),
        ("fd00::/8", "fd00::1", True),
        ("", "localhost", True),
        ("", "127.0.0.9", True),
        ("", "::1", True),
    ],
)
def test_no_proxy_is_taken_where_the_rules_say_so(rules: str, host: str, exempt: bool) -> None:
    proxies = proxies_from({"HTTPS_PROXY": "http://proxy.test:3128", "NO_PROXY": rules})
    assert proxies.proxy_for(Address("https", host, 443)) == (None if exempt else PROXY)
    assert proxies.proxy_for(Address("http", host, 80)) is None
