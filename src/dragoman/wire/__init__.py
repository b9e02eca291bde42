"""Wire protocols: pure codecs between bytes and events, without I/O.

The family packages use the same file names for the same roles:

- `request.py`, `messages.py` and `options.py` write our request to the provider;
- `chunk.py`, `event_builder.py` and `decoder.py` turn the provider's answer into events;
- `client_request.py` and the other `client_*.py` parse the request of a gateway client;
- `encoder.py` and the other `encoder_*.py` encode events for that client;
- `tap.py` reads the usage of an answer that is relayed unchanged, `usage.py` converts it.
"""
