"""Energy that the machine says it has used, by its powercap interface (RAPL).

Source: Linux, Documentation/power/powercap/powercap.rst.
"""

from pathlib import Path
from typing import Self

import msgspec

POWERCAP = Path("/sys/class/powercap")

_JOULES = 1e-6


class _Zone(msgspec.Struct, frozen=True):
    """A counter of microjoules, which begins anew above ``most``."""

    counter: Path
    most: int

    def read(self) -> int:
        return int(self.counter.read_text())


class EnergyMeter:
    """The energy of all packages of the machine; use `found` to get one.

    It counts everything that runs meanwhile, in other processes too.
    """

    def __init__(self, zones: "tuple[_Zone, ...]") -> None:
        self._zones = zones
        self._before = [zone.read() for zone in zones]

    @classmethod
    def found(cls, root: Path = POWERCAP) -> Self | None:
        """Return the meter of a machine, None if it has none that can be read.

        Packages are the zones directly below ``root`` such as ``intel-rapl:0``; those
        of parts, such as ``intel-rapl:0:1``, are counted in them. Only root may read
        the counters on many systems.
        """
        try:
            zones = tuple(
                _Zone(folder / "energy_uj", _number(folder / "max_energy_range_uj"))
                for folder in sorted(root.iterdir())
                if folder.name.count(":") == 1 and (folder / "energy_uj").exists()
            )
            return cls(zones) if zones else None
        except (OSError, ValueError):
            return None

    def joules(self) -> float | None:
        """Return the energy since the last call, or since this was made.

        None if a counter can be read no longer.
        """
        try:
            now = [zone.read() for zone in self._zones]
        except (OSError, ValueError):
            return None
        used = sum(
            after - before + (zone.most if after < before else 0)
            for zone, before, after in zip(self._zones, self._before, now, strict=True)
        )
        self._before = now
        return used * _JOULES


def _number(file: Path) -> int:
    return int(file.read_text())
