"""URLs that bypass naive filters, by technique.

The techniques are those of the public lists for testers; the spellings are ours.
"""

from __future__ import annotations

from ipaddress import IPv4Address

METADATA = "/latest/meta-data/"

# What names in the list lead to. Services that answer with any address you like exist in the public DNS.
ANSWERS: dict[str, list[str]] = {
    "loopback.example.com": ["127.0.0.1"],
    "loopback6.example.com": ["::1"],
    "127.0.0.1.nip.example.com": ["127.0.0.1"],
    "169-254-169-254.sslip.example.com": ["169.254.169.254"],
    "magic-7f000001.example.com": ["127.0.0.6"],
    "app.10.0.0.1.example.com": ["10.0.0.1"],
    "mixed.example.com": ["93.184.216.34", "10.0.0.5"],
    "mixed6.example.com": ["93.184.216.34", "2606:2800:220:1::1", "fd00::5"],
    "last.example.com": ["93.184.216.34", "93.184.216.35", "169.254.169.254"],
    "mapped.example.com": ["::ffff:93.184.216.34"],
    "mappedlocal.example.com": ["::ffff:127.0.0.1"],
    "compatible.example.com": ["::127.0.0.1"],
    "nat64.example.com": ["64:ff9b::7f00:1"],
    "nat64local.example.com": ["64:ff9b:1::a9fe:a9fe"],
    "sixtofour.example.com": ["2002:7f00:1::"],
    "teredo.example.com": ["2001:0:4136:e378:8000:63bf:80ff:fffe"],
    "isatap.example.com": ["2606:2800:220:1:0:5efe:7f00:1"],
    "zone.example.com": ["fe80::1%eth0"],
    "zoned.example.com": ["2606:2800:220:1::1%1"],
    "unspecified.example.com": ["0.0.0.0"],
    "shared.example.com": ["100.64.3.4"],
    "empty.example.com": [],
    "garbage.example.com": ["no address"],
    "short.example.com": ["127.1"],
    "xn--lcalhost-n4a.example.com": ["127.0.0.1"],
}

SPELLED = [
    *("http://127.1/", "http://127.0.1/", "http://127.1:80/", "http://0/", "http://0.0/", "http://1/"),
    *("http://10.1/", "http://192.168.257/", "http://169.254.43518/", "http://172.16.1/"),
    *("http://2130706433/", "http://3232235521/", "http://2852039166/", "http://017700000001/"),
    *("http://7147006462/", "http://4294967297/", "http://425.510.425.510/", "http://00002130706433/"),
    *("http://0x7f000001/", "http://0x7F.1/", "http://0x7f.0x0.0x0.0x1/", "http://0xA9FEA9FE/"),
    *("http://0xa9.0xfe.0xa9.0xfe/", "http://0x41414141A9FEA9FE/", "http://0x7f.0.0.1/", "http://0x/"),
    *("http://0177.0.0.1/", "http://0177.0.0.01/", "http://0251.0376.0251.0376/", "http://0177.1/"),
    *("http://0251.00376.000251.0000376/", "http://0251.254.169.254/", "http://127.0.0.01/"),
    *("http://127.000.000.001/", "http://0o177.0.0.1/", "http://o177.0.0.1/", "http://q177.0.0.1/"),
    *("http://127.0.0.0x1/", "http://169.254.0xa9fe/", "http://127.0.0.1.0x7f/", "http://256.0.0.1/"),
    *("http://127.0.0.1./", "http://localhost./", "http://2130706433./", "http://0x7f.1./"),
    *("http://127..0.0.1/", "http://.127.0.0.1/", "http://127.0.0.1../", "http://1.2.3.4.5/"),
    *("http://+127.0.0.1/", "http://-1/", "http://127.0.0.1,1/", "http://127.0.0.1;/", "http://1e9/"),
]
ENCODED = [
    *("http://%31%32%37.0.0.1/", "http://127%2e0%2e0%2e1/", "http://%6c%6f%63alhost/", "http://loc%61lhost/"),
    *("http://127.0.0.1%00.example.com/", "http://example.com%2f@127.0.0.1/", "http://127.0.0.1%2f.example.com/"),
    *("http://example.com%00@127.0.0.1/", "http://127.0.0.1%23.example.com/", "http://127.0.0.1%20/"),
    *("http://%5b::1%5d/", "http://127.0.0.1%3a80/", "http://example.com%40127.0.0.1/", "http://%00/"),
    "http://%EF%BC%91%EF%BC%92%EF%BC%97.0.0.1/",
]  # fmt: skip
UNICODE = [
    *("http://\uff11\uff12\uff17.0.0.1/", "http://127\u30020\u30020\u30021/", "http://127\uff0e0\uff0e0\uff0e1/"),
    *("http://127\uff610\uff610\uff611/", "http://\u2460\u2461\u2466.\u24ea.\u24ea.\u2460/"),
    *("http://\u24db\u24de\u24d2\u24d0\u24db\u24d7\u24de\u24e2\u24e3/", "http://\U0001d7cf\U0001d7d0\U0001d7d5.0.0.1/"),
    *("http://loca\u217ahost/", "http://\uff4c\uff4f\uff43\uff41\uff4c\uff48\uff4f\uff53\uff54/", "http://localhos\u1d57/"),
    *("http://l\u00adocalhost/", "http://local\u200bhost/", "http://local\u200dhost/", "http://127.0.0.1\ufeff/"),
    *("http://\u202e1.0.0.721/", "http://localho\u017ft/", "http://\u212aubernetes/", "http://metadata.google\u3002internal/"),
    *("http://example.com\uff0f@127.0.0.1/", "http://example.com\u2100.127.0.0.1/", "http://127.0.0.1\uff1a80/"),
    *("http://example.com\uff20127.0.0.1/", "http://127.0.0.1\uff03.example.com/", "http://127.0.0.1\uff1f.example.com/"),
    *("http://\uff3b::1\uff3d/", "http\uff1a//127.0.0.1/", "http:\uff0f\uff0f127.0.0.1/", "http\u017f://127.0.0.1/"),
    *("http://\u0661\u0662\u0667.0.0.1/", "http://127.0.0.\u0661/", "http://\u0967\u0968\u096d.\u0966.\u0966.\u0967/"),
    *("http://\u2488\u2488\u2488\u2488/", "http://\u00b2\u00b9\u00b3\u2070/", "http://127.0.0.1\u00a0/", "http://127.0.0.1\u2028/"),
    "http://xn--lcalhost-n4a.example.com/",
    "http://\ud83d\ude00.localhost/",
]  # fmt: skip
PARSERS = [
    *("http://example.com@127.0.0.1/", "http://example.com:80@127.0.0.1/", "http://user:pass@example.com/"),
    *("http://@127.0.0.1/", "http://:@127.0.0.1/", "http://127.0.0.1@example.com@127.0.0.1/", "http://@/"),
    *("http://1.1.1.1 &@127.0.0.1# @127.0.0.2/", "http://example.com:80+&@127.0.0.1:80/#+@example.com:80/"),
    *("http://127.0.0.1:80+&@example.com:80#+@example.com:80/", "http://127.0.0.1:80/?@example.com:80/"),
    *("http://127.0.0.1:80/#@example.com/", "http://127.0.0.1?@example.com/", "http://127.0.0.1#@example.com/"),
    *("http://127.0.0.1:80\\@example.com:80/", "http://example.com\\@127.0.0.1/", "http://127.0.0.1\\.example.com/"),
    *("http://example.com:80\\\\@127.0.0.1:80/", "http://127.0.0.1:80\\@@example.com/"),
    *("http:\\\\127.0.0.1\\",),
    *("http://127.0.0.1:80:\\@@example.com:80/", "http://127.0.0.1:80#\\@example.com:80/"),
    *("http:/\\127.0.0.1/",),
    *("http:127.0.0.1/", "http:/127.0.0.1/", "http:///127.0.0.1/", "http:////127.0.0.1/", "//127.0.0.1/"),
    *("http://?127.0.0.1/", "http://#127.0.0.1/", "http://", "http:///", "http://:80/", "127.0.0.1"),
    *("localhost",),
    *("\thttp://127.0.0.1/", " http://127.0.0.1/", "http://127.0.0.1/ ", "ht\ntp://127.0.0.1/", "http://127.0.\t0.1/"),
    *("http://127.0.0.1\n.example.com/", "http://example.com\r\nhost: 127.0.0.1/", "http:\t//127.0.0.1/"),
    *("http://example.com/\r\nx: y", "http://127.0.0.1\x00.example.com/", "\x00http://127.0.0.1/", "http://\x0b/"),
    *("http://127.0.0.1:/", "http://127.0.0.1:080/", "http://127.0.0.1:80:443/", "http://127.0.0.1:-1/"),
    *("http://127.0.0.1:65616/", "http://example.com:65616/", "http://localhost:+11211aaa/", "http://example.com:0/"),
    *("http://example.com:\uff18\uff10/", "http://example.com:80abc/", "http://[::1/", "http://::1/", "http://::1]/"),
    *("http://0000::1:80/", "http://[127.0.0.1]/", "http://[localhost]/", "http://[v1.127.0.0.1]/", "http://[]/"),
    *("http://[::1]@example.com/", "http://[::1]example.com/", "http://example.com[::1]/", "http://[[::1]]/"),
    *("http://evil$host/", "http://${HOST}/", "http://`id`/", "http://{127.0.0.1}/", "http://*.0.0.1/", "http://~/"),
    "http://" + "a" * 300 + ".com/",
    "http://example.com/" + "a" * 9_000,
]  # fmt: skip
SIX = [
    *("http://[::1]/", "http://[::]/", "http://[::]:80/", "http://[0:0:0:0:0:0:0:1]/", "http://[0000::1]/"),
    *("http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]/", "http://[0:0:0:0:0:ffff:127.0.0.1]/"),
    *("http://[::FFFF:A9FE:A9FE]/", "http://[::ffff:169.254.169.254]/", "http://[::ffff:10.0.0.1]/"),
    *("http://[::ffff:93.184.216.34]/", "http://[::ffff:0:127.0.0.1]/", "http://[::127.0.0.1]/", "http://[::7f00:1]/"),
    *("http://[2002:7f00:1::]/", "http://[2002:a9fe:a9fe::1]/", "http://[2002:5db8:d822::1]/", "http://[2002:a00:1::]/"),
    *("http://[64:ff9b::127.0.0.1]/", "http://[64:ff9b::a9fe:a9fe]/", "http://[64:ff9b:1::7f00:1]/"),
    *("http://[64:ff9b:1:ffff::10.0.0.1]/", "http://[2001:0:4136:e378:8000:63bf:80ff:fffe]/", "http://[2001::1]/"),
    *("http://[fc00::1]/", "http://[fd00:ec2::254]/", "http://[fd20:ce::254]/", "http://[fd12:3456::1]/"),
    *("http://[fe80::1]/", "http://[fe80::1%25eth0]/", "http://[fe80::1%eth0]/", "http://[::1%251]/", "http://[::1%lo]/"),
    *("http://[fec0::1]/", "http://[ff02::1]/", "http://[ff0e::1]/", "http://[100::1]/", "http://[2001:db8::1]/"),
    *("http://[3fff::1]/", "http://[5f00::1]/", "http://[2001:2::1]/", "http://[2001:10::1]/", "http://[4000::1]/"),
    *("http://[2606:2800:220:1:0:5efe:7f00:1]/", "http://[2606:2800:220:1:200:5efe:10.0.0.1]/", "http://[3ffe::1]/"),
]  # fmt: skip
SCHEMES = [
    *("file:///etc/passwd", "file://localhost/etc/passwd", "file:/etc/passwd", "file://\\/\\/etc/passwd"),
    *("gopher://127.0.0.1:25/_HELO", "dict://127.0.0.1:6379/INFO", "ftp://127.0.0.1/", "sftp://127.0.0.1/"),
    *("tftp://127.0.0.1:69/x", "ldap://127.0.0.1/", "ldaps://127.0.0.1/", "jar:http://127.0.0.1!/", "ws://127.0.0.1/"),
    *("netdoc:///etc/passwd", "data:text/plain,hi", "javascript:alert(1)", "about:blank", "unix:///var/run/docker.sock"),
    *("http+unix://%2Fvar%2Frun%2Fdocker.sock/", "view-source:http://127.0.0.1/", "url:http://127.0.0.1/"),
    *("", "/", "."),
    *("0://example.com:80;http://127.0.0.1:80/", "blob:http://127.0.0.1/", "php://filter/x", "phar://x"),
    *("mailto:a@b",),
    *("httpx://127.0.0.1/", "HTTPS+x://127.0.0.1/", "feed:http://127.0.0.1/", "http://http://127.0.0.1/"),
]  # fmt: skip
ADDRESSES = [
    f"http://{address}/"
    for address in (
        *("127.0.0.1", "127.0.0.0", "127.127.127.127", "127.0.1.3", "127.255.255.255", "0.0.0.0", "0.1.2.3"),
        *("10.0.0.0", "10.255.255.255", "172.16.0.0", "172.31.255.255", "192.168.0.0", "192.168.255.255"),
        *(
            "169.254.0.0",
            "169.254.169.254",
            "169.254.170.2",
            "169.254.255.255",
            "168.63.129.16",
            "192.0.0.192",
        ),
        *("100.64.0.0", "100.100.100.200", "100.127.255.255", "192.0.0.1", "192.0.2.1", "192.88.99.1"),
        *("198.18.0.0", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255"),
        *("240.0.0.1", "255.255.255.255", "254.1.1.1", "192.0.0.8", "192.0.0.170"),
    )
]
NAMES = [
    *("http://localhost/", "https://localhost/", "http://LOCALHOST/", "http://a.localhost/", "http://localhost.localdomain/"),
    *("http://metadata.google.internal/computeMetadata/v1/", "http://metadata/", "http://instance-data/latest/"),
    *("http://kubernetes.default.svc/", "http://etcd.cluster.local/", "http://host.docker.internal/", "http://redis/"),
    *("http://printer.local/", "http://router.lan/", "http://router.home.arpa/", "http://wiki.corp/", "http://db.intranet/"),
    *("http://1.0.0.127.in-addr.arpa/", "http://abc.onion/", "http://rancher-metadata/latest/", "http://box.home/"),
    *(f"http://{name}/" for name in ANSWERS),
    f"http://169-254-169-254.sslip.example.com{METADATA}",
]  # fmt: skip
PORTS = [
    f"http://93.184.216.34:{port}/"
    for port in (22, 25, 53, 110, 143, 2375, 3306, 5432, 6379, 8080, 8443, 9200, 10250, 11211, 27017)
]


def every_number() -> list[str]:
    """The ways in which C libraries read one IPv4 address, for the two that matter most."""
    spelled = []
    for address in ("127.0.0.1", "169.254.169.254"):
        number = int(IPv4Address(address))
        parts = address.split(".")
        last = (number & 0xFF_FFFF, number & 0xFFFF)
        spelled += [f"{number}", f"{number:#x}", f"0{number:o}", f"{number + 2**32}"]
        spelled += [f"{parts[0]}.{last[0]}", f"{parts[0]}.{parts[1]}.{last[1]}"]
        spelled += [
            ".".join(f"{int(part):#x}" for part in parts),
            ".".join(f"0{int(part):o}" for part in parts),
        ]
        spelled += [".".join(f"{int(part):#04X}" for part in parts), ".".join(f"000{part}" for part in parts)]
        spelled += [f"{int(parts[0]):#x}.{last[0]}", f"0{int(parts[0]):o}.{int(parts[1]):#x}.{last[1]}"]
    return [f"http://{each}/" for each in spelled]


BYPASSES = list(
    dict.fromkeys(
        SPELLED + ENCODED + UNICODE + PARSERS + SIX + SCHEMES + ADDRESSES + NAMES + PORTS + every_number()
    )
)
