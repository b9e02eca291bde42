"""What destructive commands look like, by what they do: patterns of small letters with single spaces."""

from __future__ import annotations

from collections.abc import Mapping

REST = r"[^|;&\n]{0,200}?"  # of a command
FLAG = rf"{REST} -"
GIT = r"\bgit\b[^|;&\n]{0,60}?"
SHELL = r"\b(?:ba|z|da|k|fi)?sh\b"

DESTRUCTIVE: Mapping[str, tuple[str, ...]] = {
    "deletes files": (
        rf"\brm\b{FLAG}(?:[a-z]*[rf]|-recursive|-force|-no-preserve)",
        rf"\bxargs\b{REST}\brm\b",
        r"\bunlink ",
        r"\bshred\b",
        rf"\bfind\b{FLAG}(?:delete\b|exec(?:dir)? (?:\S{{0,100}}/)?(?:rm|shred)\b)",
        r"\brmtree\(",
        r"\bos\.(?:remove|unlink)\(",
        rf"\brsync\b{FLAG}-delete",
        r"\bremove-item\b",
        rf"\b(?:rmdir|rd|del|erase)\b{REST} /[sqf]\b",
        rf"\btruncate\b{FLAG}(?:s|-size)",
    ),
    "writes to a disk": (
        rf"\bdd\b{REST}\bof=",
        r"\b(?:mkfs|mkswap|wipefs|blkdiscard|fdisk|sgdisk|parted|diskpart)\b",
        r"> ?/dev/(?:sd|nvme|hd|vd|disk|mmcblk|mapper)",
        r"\bformat [a-z]:",
    ),
    "changes rights of all below": (rf"\bch(?:mod|own|grp)\b{FLAG}(?:[a-z]*r\b|-recursive)",),
    "stops the machine or its programs": (
        r"\b(?:shutdown|reboot|poweroff|halt)\b",
        r"\binit [06]\b",
        r"\b(?:killall|pkill)\b",
        rf"\bkill\b{REST} -1\b",
        r": ?\( ?\) ?\{",
    ),
    "rewrites history": (
        rf"{GIT}\bpush\b{REST} (?:-[a-z]*[fd]\b|--force|--delete|--mirror|--prune|\+\S|:\S)",
        rf"{GIT}\breset\b{FLAG}-hard",
        rf"{GIT}\bclean\b{FLAG}(?:[a-z]*[fdx]|-force)",
        rf"{GIT}\bbranch\b{FLAG}(?:d\b|-delete)",
        rf"{GIT}\b(?:filter-branch|filter-repo|update-ref -d)\b",
        rf"{GIT}\b(?:checkout|restore)\b{REST} (?:-- )?\.(?: |$)",
        rf"{GIT}\bstash (?:drop|clear)",
    ),
    "drops data": (
        r"\bdrop (?:table|database|schema|view|index|user|role|collection|keyspace|column|materialized)\b",
        r"\btruncate (?:table )?[a-z_\"`\[]",
        r"\bdropdb\b",
        r"\bflush(?:all|db)\b",
        r"\bdropdatabase\b",
        r"\.drop\(\)",
        r"\bdeletemany\( ?\{ ?\}",
    ),
    "takes infrastructure down": (
        rf"\b(?:terraform|tofu|pulumi)\b{REST}\bdestroy\b",
        rf"\bkubectl\b{REST}\bdelete\b",
        rf"\bhelm\b{REST}\b(?:uninstall|delete)\b",
        rf"\baws\b{REST}\b(?:s3 r[mb]|terminate-instances|delete-\w)",
        rf"\bgcloud\b{REST}\bdelete\b",
        rf"\baz\b{REST} delete\b",
        rf"\bdocker\b{REST}\b(?:prune|rm|rmi)\b",
        rf"\bcrontab\b{FLAG}r\b",
        r"\buserdel\b",
    ),
    "runs what it downloads or decodes": (
        rf"\b(?:curl|wget|base64|xxd|openssl)\b{REST}\|[^;\n]{{0,200}}?{SHELL}",
        rf"{SHELL} <\( ?(?:curl|wget)",
        rf"\beval\b{REST}(?:\$\(|`)",
    ),
}
