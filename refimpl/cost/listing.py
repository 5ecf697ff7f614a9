"""Numbers that work, as a refusal lists them: "1, 2, 4 or 8"."""


def listed(numbers):
    """Numbers in words, the last two joined by "or"; at least one."""
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last


def divisors(n):
    """The divisors of n, 1 or more, in words."""
    return listed([k for k in range(1, n + 1) if n % k == 0])
