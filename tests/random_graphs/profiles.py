"""How many graphs are tried: few and always the same, or many new ones.

``pytest tests/random_graphs --hypothesis-profile=thorough`` tries many.
"""

from hypothesis import HealthCheck, settings

THOROUGH = "thorough"

_CHECKS = (HealthCheck.too_slow, HealthCheck.data_too_large)
"""A graph takes a few hundred choices, and each is run several times."""

_FEW = settings(
    max_examples=300,
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=_CHECKS,
)
_MANY = settings(
    max_examples=5000,
    deadline=None,
    print_blob=True,
    suppress_health_check=_CHECKS,
)


def register() -> None:
    """Make `THOROUGH` known to Hypothesis."""
    settings.register_profile(THOROUGH, _MANY)


def examples(share: float = 1.0) -> settings:
    """Return the settings of the chosen profile, or of a share of its examples."""
    is_thorough = settings.get_current_profile_name() == THOROUGH
    profile = _MANY if is_thorough else _FEW
    return settings(profile, max_examples=max(round(profile.max_examples * share), 1))
