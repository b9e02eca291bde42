"""Sessions as files: JSON lines to keep and import, HTML pages to read, and the exports of other programs."""
