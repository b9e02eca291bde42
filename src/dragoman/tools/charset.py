"""Characters: bytes of the web as text, by what their sender, their first bytes or the page itself says.

Source: WHATWG Encoding, as far as its names go. Only known names are taken, never any codec of Python's.
"""

from __future__ import annotations

import re

from dragoman.errors import CallError

LOOKED_AT = 2_048  # bytes in which a page says its encoding
GARBAGE = 0.1  # of the text that may be unreadable
SLIPS = 4  # characters that may be, however short it is
NAMED = re.compile(
    rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w-]+)|<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([\w-]+)",
    re.IGNORECASE,
)
UNREADABLE = re.compile("[\0-\x08\x0e-\x1a\x1c-\x1f\x7f\ufffd]+")
MARKS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
CODECS = {
    "ascii": "cp1252", "us-ascii": "cp1252", "latin1": "cp1252", "iso-8859-1": "cp1252", "l1": "cp1252",
    "iso-8859-9": "cp1254", "utf8": "utf-8", "utf-8": "utf-8", "utf-16": "utf-16-le", "utf-16le": "utf-16-le",
    "utf-16be": "utf-16-be", "gb2312": "gb18030", "gbk": "gb18030", "gb18030": "gb18030", "big5": "big5hkscs",
    "big5-hkscs": "big5hkscs", "shift_jis": "cp932", "shift-jis": "cp932", "sjis": "cp932",
    "windows-31j": "cp932", "euc-jp": "euc_jp", "iso-2022-jp": "iso2022_jp", "euc-kr": "cp949",
    "ks_c_5601-1987": "cp949", "koi8-r": "koi8_r", "koi8-u": "koi8_u", "ibm866": "cp866", "cp866": "cp866",
    "macintosh": "mac_roman", "x-mac-cyrillic": "mac_cyrillic", "windows-874": "cp874", "tis-620": "cp874",
    **{f"windows-{page}": f"cp{page}" for page in range(1250, 1259)},
    **{f"cp{page}": f"cp{page}" for page in range(1250, 1259)},
    **{f"iso-8859-{part}": f"iso8859_{part}" for part in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)},
}  # fmt: skip


def decode(body: bytes, charset: str | None = None) -> str:
    """The text of a body. CallError when it is none; characters that cannot be read show as `�`."""
    mark = next((codec for start, codec in MARKS if body.startswith(start)), None)
    said = CODECS.get((charset or "").lower())
    codec = mark or said or named(body) or guess(body)
    text = body.decode(codec, errors="replace").removeprefix("\ufeff")
    unreadable = sum(len(run) for run in UNREADABLE.findall(text))
    if unreadable > max(SLIPS, GARBAGE * len(text)) or "\0" in text[:LOOKED_AT]:
        raise CallError("what came is no text", hint="web.fetch reads HTML, plain text, JSON and XML")
    return text


def named(body: bytes) -> str | None:
    """The encoding that the first bytes of a page name; one that they could not be read in is a mistake."""
    found = NAMED.search(body[:LOOKED_AT])
    name = (found[1] or found[2]).decode("ascii", errors="replace").lower() if found else ""
    codec = CODECS.get(name)
    return "utf-8" if codec is not None and codec.startswith("utf-16") else codec


def guess(body: bytes) -> str:
    """The encoding of what does not say: UTF-8 if most of it can be that, else Windows' Western one."""
    text = body.decode(errors="replace")
    foreign = len(text) - len(text.encode("ascii", errors="ignore"))
    return "cp1252" if 2 * text.count("\ufffd") > foreign else "utf-8"
