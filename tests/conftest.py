"""What all tests share: programs that they start can be stopped with Ctrl-C, whatever started the tests."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Hear SIGINT again where a shell had it ignored, as it has for what it runs in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
