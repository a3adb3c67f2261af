"""The input language: named axes, a small closed set of operators, a builder, an evaluator."""

from prism.program.builder import Builder
from prism.program.formula import parse
from prism.program.node import Node, Op
from prism.program.numeric import evaluate
from prism.program.program import DTYPES, Program
from prism.program.serial import program_from_json, program_to_json

__all__ = [
    "DTYPES",
    "Builder",
    "Node",
    "Op",
    "Program",
    "evaluate",
    "parse",
    "program_from_json",
    "program_to_json",
]
