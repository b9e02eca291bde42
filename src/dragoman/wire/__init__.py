"""Wire protocols: pure codecs between bytes and events; no I/O."""
