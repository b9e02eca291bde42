"""`math.calculate`: arithmetic, evaluated on a syntax tree and never as code."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Annotated, TypeAlias

from pydantic import Field

from dragoman.errors import BadRequest

Number: TypeAlias = int | float

MAX_LENGTH = 1_000  # characters
MAX_DEPTH = 64
MAX_BITS = 4_096  # of an integer
MAX_FACTORIAL = 500
MAX_EXACT_INTEGER = 2**53  # larger integers lose digits in many JSON readers
OPERATOR_SYMBOLS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "\n": " ", "\t": " "})  # noqa: RUF001 - typed

CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau}


def factorial(number: Number) -> int:
    if not isinstance(number, int) or not 0 <= number <= MAX_FACTORIAL:
        raise ValueError(f"factorial takes an integer from 0 to {MAX_FACTORIAL}")
    return math.factorial(number)


def power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and exponent >= 0:
        if base.bit_length() * exponent > MAX_BITS:
            raise ValueError("the power is too large")
        return int(base**exponent)
    value = base**exponent
    if isinstance(value, complex):
        raise ValueError("the power is not a real number")
    return float(value)


def round_number(number: Number, digits: Number = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > MAX_BITS:
        raise ValueError("round takes an integer number of digits")
    return round(number, digits) if digits else round(number)


FUNCTIONS: Mapping[str, tuple[Callable[..., Number], int, int]] = {
    "abs": (abs, 1, 1),
    "acos": (math.acos, 1, 1),
    "asin": (math.asin, 1, 1),
    "atan": (math.atan, 1, 1),
    "atan2": (math.atan2, 2, 2),
    "cbrt": (math.cbrt, 1, 1),
    "ceil": (math.ceil, 1, 1),
    "cos": (math.cos, 1, 1),
    "degrees": (math.degrees, 1, 1),
    "exp": (math.exp, 1, 1),
    "factorial": (factorial, 1, 1),
    "floor": (math.floor, 1, 1),
    "gcd": (math.gcd, 2, 20),
    "hypot": (math.hypot, 2, 20),
    "lcm": (math.lcm, 2, 20),
    "log": (math.log, 1, 2),
    "log10": (math.log10, 1, 1),
    "log2": (math.log2, 1, 1),
    "max": (max, 2, 100),
    "min": (min, 2, 100),
    "pow": (power, 2, 2),
    "radians": (math.radians, 1, 1),
    "round": (round_number, 1, 2),
    "sin": (math.sin, 1, 1),
    "sqrt": (math.sqrt, 1, 1),
    "tan": (math.tan, 1, 1),
}
BINARY: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: power,
}
UNARY: Mapping[type[ast.unaryop], Callable[[Number], Number]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


def evaluate(expression: str) -> Number:
    """Return the value of an arithmetic expression in Python's notation.

    Supports + - * / // % **, parentheses, the names in CONSTANTS and FUNCTIONS. Raises BadRequest with the
    problem and its character, counted from 1.
    """
    if not expression.strip() or len(expression) > MAX_LENGTH:
        raise BadRequest(
            f"The expression must have 1 to {MAX_LENGTH} characters, got {len(expression)}.",
            field="expression",
        )
    text = expression.translate(OPERATOR_SYMBOLS).strip()
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError as error:
        raise expression_error(
            f"cannot be parsed: {error.msg}", text, offset=error.offset - 1 if error.offset else len(text)
        ) from None
    except (ValueError, RecursionError, MemoryError):
        raise BadRequest("The expression cannot be parsed.", field="expression") from None
    return ExpressionEvaluator(text).evaluate(tree.body)


def expression_error(problem: str, text: str, *, offset: int) -> BadRequest:
    """Return the error for a position in the text."""
    following = text[offset : offset + 12]
    position = f"character {offset + 1}" + (f", at {following!r}" if following else ", the end")
    return BadRequest(f"The expression {problem} ({position})", field="expression")


class ExpressionEvaluator:
    """Evaluates the syntax tree of one expression."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._depth = 0

    def evaluate(self, node: ast.expr) -> Number:
        """Return the value of a part of the tree."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error("is nested too deeply", node)
        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                result: Number = number
            case ast.Name(id=name) if name in CONSTANTS:
                result = CONSTANTS[name]
            case ast.UnaryOp(op=op, operand=operand) if type(op) in UNARY:
                result = UNARY[type(op)](self.evaluate(operand))
            case ast.BinOp():
                result = self._evaluate_chain(node)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                result = self._evaluate_call(node, name, arguments=args)
            case _:
                raise self._error(unsupported_reason(node), node)
        self._depth -= 1
        return self._check_bounds(node, result)

    def _evaluate_chain(self, node: ast.expr) -> Number:
        """Evaluate operators from left to right, without recursion: `1 + 2 + 3` nests to the left."""
        chain: list[ast.BinOp] = []
        while isinstance(node, ast.BinOp):
            chain.append(node)
            node = node.left
        result = self.evaluate(node)
        for operation in reversed(chain):
            if type(operation.op) not in BINARY:
                raise self._error(unsupported_reason(operation), operation)
            result = self._apply(
                operation, BINARY[type(operation.op)], values=[result, self.evaluate(operation.right)]
            )
        return result

    def _evaluate_call(self, node: ast.Call, name: str, *, arguments: list[ast.expr]) -> Number:
        if name not in FUNCTIONS:
            raise self._error(f"calls {name!r}; the functions are {', '.join(FUNCTIONS)}", node)
        function, least, most = FUNCTIONS[name]
        if not least <= len(arguments) <= most:
            expected = least if least == most else f"{least} to {most}"
            raise self._error(f"passes {len(arguments)} values to {name}; it takes {expected}", node)
        return self._apply(node, function, values=[self.evaluate(argument) for argument in arguments])

    def _apply(self, node: ast.expr, function: Callable[..., Number], *, values: list[Number]) -> Number:
        try:
            result = function(*values)
        except (ArithmeticError, ValueError, TypeError) as error:
            raise self._error(f"has no value here: {error.args[-1]}", node) from None
        return self._check_bounds(node, result)

    def _check_bounds(self, node: ast.expr, result: Number) -> Number:
        if isinstance(result, int) and result.bit_length() > MAX_BITS:
            raise self._error("has too large an integer here", node)
        if isinstance(result, float) and not math.isfinite(result):
            raise self._error("has no finite value here", node)
        return result

    def _error(self, problem: str, node: ast.expr) -> BadRequest:
        """Return the error at a node; for an operator it points to the sign."""
        column = node.left.end_col_offset if isinstance(node, ast.BinOp) else node.col_offset
        offset = len(self._text.encode()[:column].decode(errors="ignore"))
        skipped = len(self._text) - offset - len(self._text[offset:].lstrip(" )"))
        return expression_error(
            problem, self._text, offset=offset + skipped if isinstance(node, ast.BinOp) else offset
        )


def unsupported_reason(node: ast.expr) -> str:
    """Return why a node is not arithmetic."""
    match node:
        case ast.BinOp(op=ast.BitXor()):
            return "has ^, which is not a power: write **"
        case ast.Name(id=name):
            return f"has the name {name!r}; the names are {', '.join([*CONSTANTS, *FUNCTIONS])}"
        case _:
            return "has something that is not arithmetic"


def calculate(
    expression: Annotated[str, Field(examples=["2 * (3 + 4) ** 2", "sqrt(2) / 2"])],
) -> Number | str:
    """Calculate the value of an arithmetic expression, exactly for whole numbers.

    Knows + - * / // (whole quotient) % (remainder) ** (power), parentheses, pi, e, tau, and the functions
    abs, acos, asin, atan, atan2, cbrt, ceil, cos, degrees, exp, factorial, floor, gcd, hypot, lcm, log (the
    natural one, or of a base), log10, log2, max, min, pow, radians, round, sin, sqrt, tan. Angles are in
    radians. Whole numbers beyond 2**53 are given as text, so that no digit is lost.

    Args:
        expression: The expression, in numbers and the names above.
    """
    result = evaluate(expression)
    return str(result) if isinstance(result, int) and abs(result) > MAX_EXACT_INTEGER else result
