"""How Tables 2 and 3 cut the layers of what they simulate, since the paper does not print it.

Ours is by time. The paper describes the minimum variance of the stages' costs, and Lingvo's code
has the cumulative share.
"""

from typing import Any

CUTS = {None: "time", "cumulative-share": "share", "minimum-variance": "variance"}  # their names
BY_FLOPS: dict[str, dict[str, Any]] = {  # by the ends of their groups' names
    "-share": {"balance": "flops", "partitioner": "cumulative-share"},
    "-variance": {"balance": "flops", "partitioner": "minimum-variance"},
}
