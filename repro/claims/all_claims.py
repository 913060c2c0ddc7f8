"""Every claim, once."""

from functools import cache

from repro.claims.cells import cells
from repro.claims.claim import Claim, Evidence, judge
from repro.claims.sentences import sentences


@cache
def all_claims() -> tuple[Claim, ...]:
    """The cells and points, then the sentences."""
    claims = (*cells(), *sentences())
    assert len({claim.id for claim in claims}) == len(claims)
    return claims


@cache
def _by_id() -> dict[str, Claim]:
    return {claim.id: claim for claim in all_claims()}


def verdict_on(identity: str, evidence: Evidence | None) -> str:
    """The verdict on the claim with this id, with its reason."""
    return str(judge(_by_id()[identity], evidence))
