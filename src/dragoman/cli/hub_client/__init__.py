"""One client of the hub's API, over HTTP or in process over a data folder."""
