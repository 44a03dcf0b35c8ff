"""The grid of an executable that IREE's compiler made: the `count` region of its export, as a rule for the manifest (D11).

The region is code over the dispatch's workload, a few whole numbers. It is run here for many workloads; a rule is accepted when it
agrees with all of them: always the same grid, or one workgroup for so many elements of a dimension.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from remora.errors import UsageError
from remora.hal.executable import Grid, GridRule

__all__ = ["Count", "grid_rule"]

Count: TypeAlias = "Callable[[Sequence[int]], Grid]"
MAX_ELEMENTS = 1 << 20
_RESULT = re.compile(r"^(%[\w$.-]+) = (.*)$")
_AFFINE = re.compile(r"affine\.(min|max|apply) affine_map<\((.*?)\)(?:\[(.*?)\])? -> \((.*)\)>\((.*?)\)(?:\[(.*?)\])?")
_TOKEN = re.compile(r"\s*(ceildiv|floordiv|mod|[a-z]\d+|\d+|[()+*-])")


def count_of(lines: Sequence[str], arguments: Sequence[str]) -> Count:
    """The region as a function of the workload. `arguments` are the names of its parameters but the device."""

    def run(workload: Sequence[int]) -> Grid:
        values = dict(zip(arguments, workload, strict=True))
        for line in lines:
            text = line.strip()
            if text.startswith("hal.return"):
                x, y, z = (values[name] for name in re.findall(r"%[\w$.-]+", text)[:3])
                return x, y, z
            if match := _RESULT.match(text):
                values[match[1]] = _operation(match[2], values)
        raise UsageError("the count region returns nothing")

    return run


def grid_rule(name: str, lines: Sequence[str], arguments: Sequence[str]) -> GridRule:
    """The rule. Raises UsageError with the region where no rule says the same."""
    count = count_of(lines, arguments)
    try:
        if not arguments:
            return GridRule(fixed=count(()))
        elements = tuple(_elements(count, len(arguments), axis) for axis in range(3))
        rule = GridRule((elements[0], elements[1], elements[2]))
        for sample in (1, 2, 63, 64, 65, 1000, 4097, 60_000):
            expected = [1 if each == 0 else -(-sample // each) for each in elements]
            if list(count([sample] * len(arguments))) != expected:
                break
        else:
            return GridRule((elements[0] or 1, elements[1] or 1, elements[2] or 1)) if 0 in elements else rule
    except (KeyError, ValueError, ZeroDivisionError, TypeError) as error:
        raise UsageError(f"{name}: the grid that the compiler chose is not understood ({error}): {' '.join(lines)}") from None
    raise UsageError(f"{name}: no grid rule says what the compiler chose: {' '.join(lines)}")


def _elements(count: Count, arguments: int, axis: int) -> int:
    """Elements a workgroup takes in a dimension, the most that one workgroup covers; 0 where one covers any number."""

    def groups(elements: int) -> int:
        return count([elements] * arguments)[axis]

    if groups(MAX_ELEMENTS) == 1:
        return 0
    low, high = 1, MAX_ELEMENTS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if groups(middle) == 1 else (low, middle)
    if any(groups(n) != -(-n // low) for n in (low, low + 1, 2 * low, 2 * low + 1)):
        raise ValueError(f"dimension {axis} has {groups(2 * low + 1)} workgroups for {2 * low + 1} elements")
    return low


def _operation(text: str, values: Mapping[str, int]) -> int:
    """One operation of the arith or affine dialect."""
    kind, _, rest = text.partition(" ")
    if match := _AFFINE.match(text):
        return _affine(match, values)
    if kind == "arith.constant":
        word = rest.split()[0]
        return {"true": 1, "false": 0}[word] if word in {"true", "false"} else int(word)
    names = re.findall(r"%[\w$.-]+", rest)
    operands = [values[name] for name in names]
    if kind == "arith.cmpi":
        a, b = operands
        return int(
            {"sle": a <= b, "slt": a < b, "sge": a >= b, "sgt": a > b, "eq": a == b, "ne": a != b}[rest.split(",")[0].strip()]
        )
    if kind == "arith.select":
        return operands[1] if operands[0] else operands[2]
    a, b = operands
    return {
        "arith.addi": lambda: a + b,
        "arith.subi": lambda: a - b,
        "arith.muli": lambda: a * b,
        "arith.divsi": lambda: int(a / b) if a * b < 0 else a // b,
        "arith.divui": lambda: a // b,
        "arith.ceildivsi": lambda: -(-a // b),
        "arith.ceildivui": lambda: -(-a // b),
        "arith.floordivsi": lambda: a // b,
        "arith.remsi": lambda: a % b,
        "arith.minsi": lambda: min(a, b),
        "arith.maxsi": lambda: max(a, b),
        "arith.minui": lambda: min(a, b),
        "arith.maxui": lambda: max(a, b),
    }[kind]()


def _affine(match: re.Match[str], values: Mapping[str, int]) -> int:
    kind, dims, symbols, expressions, given_dims, given_symbols = match.groups()
    names = _list(dims) + _list(symbols)
    given = [values[name] for name in _list(given_dims) + _list(given_symbols)]
    known = dict(zip(names, given, strict=True))
    results = [_Expression(part, known).whole() for part in expressions.split(",")]
    return min(results) if kind == "min" else max(results)


def _list(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


class _Expression:
    """An affine expression: sums of products; ceildiv, floordiv and mod bind as products do."""

    def __init__(self, text: str, known: Mapping[str, int]) -> None:
        self._tokens = _TOKEN.findall(text)
        if "".join(self._tokens) != re.sub(r"\s", "", text):
            raise ValueError(f"the expression {text.strip()!r}")
        self._known = known

    def whole(self) -> int:
        """The value of all of it."""
        value = self._sum()
        if self._tokens:
            raise ValueError(f"{self._tokens[0]!r} in an expression")
        return value

    def _sum(self) -> int:
        value = self._product()
        while self._tokens[:1] in (["+"], ["-"]):
            sign = 1 if self._tokens.pop(0) == "+" else -1
            value += sign * self._product()
        return value

    def _product(self) -> int:
        value = self._atom()
        while self._tokens[:1] in (["*"], ["ceildiv"], ["floordiv"], ["mod"]):
            kind, other = self._tokens.pop(0), self._atom()
            value = {"*": lambda v, o: v * o, "ceildiv": lambda v, o: -(-v // o), "floordiv": lambda v, o: v // o,
                     "mod": lambda v, o: v % o}[kind](value, other)  # fmt: skip
        return value

    def _atom(self) -> int:
        if not self._tokens:
            raise ValueError("an expression that ends early")
        token = self._tokens.pop(0)
        if token == "-":
            return -self._atom()
        if token != "(":
            return int(token) if token.isdigit() else self._known[token]
        value = self._sum()
        if self._tokens[:1] != [")"]:
            raise ValueError("a bracket that is not closed")
        self._tokens.pop(0)
        return value
