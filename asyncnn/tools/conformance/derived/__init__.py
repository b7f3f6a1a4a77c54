"""Cases for what the public vectors leave out, derived from those that there are.

Each module knows one reason why a result must be what it is: `reinterpreting`, that
some operations only see bytes; `mirroring`, that a > b is b < a; `retyping`, that a
number means the same in every type; `formulas`, that some operations are one line of
arithmetic. `derive` collects their cases, and the twins of `conformance.coupling`.
"""

from asyncnn.tools.conformance.derived.collection import derive, derived_cases

__all__ = ("derive", "derived_cases")
