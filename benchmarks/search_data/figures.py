"""Figures: how good a ranking is, as the literature counts it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from benchmarks.search_data.pool import Query

TOP = 10


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Shares of 100: first hits that are wanted, wanted ones among the first five, NDCG of the first ten."""

    first: float
    recall: float
    ndcg: float


def judge(queries: Sequence[Query], ranked: Sequence[Sequence[int]]) -> Quality:
    """What the rankings of these queries are worth, a query as much as any other."""
    pairs = [(query.gold, list(found)) for query, found in zip(queries, ranked, strict=True)]
    return Quality(
        first=100 * mean(bool(found) and found[0] in gold for gold, found in pairs),
        recall=100 * mean(len(gold.intersection(found[:5])) / len(gold) for gold, found in pairs),
        ndcg=100 * mean(_ndcg(gold, found) for gold, found in pairs),
    )


def average(qualities: Sequence[Quality]) -> Quality:
    """The mean over pools, a pool as much as any other."""
    return Quality(
        first=mean(each.first for each in qualities),
        recall=mean(each.recall for each in qualities),
        ndcg=mean(each.ndcg for each in qualities),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def _ndcg(gold: frozenset[int], found: Sequence[int]) -> float:
    gain = sum(1 / math.log2(place + 2) for place, each in enumerate(found[:TOP]) if each in gold)
    best = sum(1 / math.log2(place + 2) for place in range(min(TOP, len(gold))))
    return gain / best
