"""Every claim, once."""

from functools import cache

from repro.claims.cells import cells
from repro.claims.claim import Claim
from repro.claims.sentences import sentences


@cache
def all_claims() -> tuple[Claim, ...]:
    """The cells and points, then the sentences."""
    claims = (*cells(), *sentences())
    assert len({claim.id for claim in claims}) == len(claims)
    return claims
