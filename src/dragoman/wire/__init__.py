"""Wire protocols: pure codecs between bytes and events, without I/O."""
