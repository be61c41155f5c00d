"""Sizes in words."""

_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def shown_size(n: int) -> str:
    """`n` bytes, as "4.7 GiB"."""
    for unit, name in _UNITS:
        if n >= unit:
            return f"{n / unit:.1f} {name}"
    return f"{n} bytes"
