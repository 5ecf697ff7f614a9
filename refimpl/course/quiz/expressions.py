"""Expressions in questions: arithmetic that is read from a file and evaluated, without being able to do anything else.

    evaluate("2 * (P-1) * n / P", {"P": 4, "n": 100})        150.0

A question's `answer` and wrong values are arithmetic on the drawn numbers. Its `check` may also call what evidence.py
offers, and read attributes of the results. Anything else (imports, underscores, comprehensions, lambdas, assignments,
text methods) is a ValueError, raised when the questions are loaded and not first when somebody meets one.
"""

import ast
import math

ARITHMETIC = {"abs": abs, "ceil": math.ceil, "floor": math.floor, "log2": math.log2, "max": max, "min": min,
              "round": round, "sum": sum}
ALLOWED = (ast.Expression, ast.Constant, ast.Name, ast.Load, ast.Tuple, ast.List,
           ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
           ast.Call, ast.keyword, ast.Attribute, ast.Subscript)


def evaluate(text, names):
    """The value of the expression `text`, in which `names` and ARITHMETIC may occur; ValueError for anything else."""
    names = ARITHMETIC | names
    tree = parse(text, names)
    return eval(compile(tree, "<question>", "eval"), {"__builtins__": {}}, names)


def parse(text, names):
    """The syntax tree of `text`; ValueError that says what in it is not allowed, or which name is unknown."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        raise ValueError(f"{text!r} is not an expression: {error.msg}") from None
    for node in ast.walk(tree):
        if not isinstance(node, ALLOWED):
            raise ValueError(f"{text!r}: {type(node).__name__} is not allowed in an expression")
        if isinstance(node, ast.Name) and node.id not in ARITHMETIC | names:
            known = ", ".join(sorted(name for name in names if name not in ARITHMETIC)) or "no names but arithmetic"
            raise ValueError(f"{text!r}: there is no {node.id!r}; there is {known}")
        if isinstance(node, ast.Attribute) and (node.attr.startswith("_") or isinstance(node.value, ast.Constant)):
            raise ValueError(f"{text!r}: .{node.attr} is not allowed in an expression")
    return tree
