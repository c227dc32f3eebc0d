"""How tidy reads a file: which files count, what in them is code, and where C++ functions begin and end.

Invariant: blanking keeps every character's line and column, so what a rule finds in the code is where it says it is.
The function finder is no parser. It needs code as clang-format leaves it, which the format rule makes sure of.
"""

import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

CPP = {".hpp", ".cpp", ".cu", ".cuh"}
SKIPPED_FOLDERS = {".git", "build", ".cache", "__pycache__", ".venv"}
# Data: never read as text by a rule.
DATA_SUFFIXES = {".safetensors", ".jsonl", ".tiktoken", ".json", ".png", ".gz", ".bin", ".svg"}
DATA_FOLDERS = ("tests/data/", "tests/golden/", "tests/fuzz/corpus/")


@dataclass(frozen=True)
class Violation:
    path: str
    line: int
    message: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.message}" if self.line else f"{self.path}: {self.message}"


@dataclass(frozen=True)
class Function:
    name: str
    first: int  # line numbers, counted from 1
    last: int
    head: str

    @property
    def length(self):
        return self.last - self.first + 1


class Source:
    """One text file below the root; `path` is relative to it."""

    def __init__(self, root, path):
        self.path = path
        self.name = os.path.basename(path)
        self.stem, self.suffix = os.path.splitext(self.name)
        self.text = (Path(root) / path).read_text(encoding="utf-8", errors="replace")

    @cached_property
    def lines(self):
        return self.text.split("\n")

    @property
    def is_cpp(self):
        return self.suffix in CPP

    @property
    def is_python(self):
        return self.suffix == ".py" or self.text.startswith("#!/usr/bin/env python")

    @property
    def is_script(self):
        return self.text.startswith("#!") or self.suffix in {".py", ".sh"}

    @property
    def is_source(self):
        """What a person wrote to be compiled or run."""
        return self.is_cpp or self.is_script or self.suffix in {".capnp", ".cmake"} or self.name == "CMakeLists.txt"

    @property
    def is_table(self):
        """Generated tables of numbers, which may be as long as they are."""
        return self.stem.endswith("_table") and "enerated by" in self.lines[0]

    def is_below(self, *folders):
        return any(self.path.startswith(folder + "/") for folder in folders)

    @cached_property
    def code(self):
        """C++ with comments, literals and preprocessor lines blanked; other languages with their # comments blanked."""
        return blank_cpp(self.text) if self.is_cpp else re.sub(r"#[^\n]*", lambda m: " " * len(m.group()), self.text)

    @cached_property
    def code_lines(self):
        return self.code.split("\n")

    @cached_property
    def includes(self):
        """(line, spelling) of each #include, the spelling with its quotes or brackets."""
        found = re.finditer(r'^[ \t]*#[ \t]*include[ \t]*(<[^>]+>|"[^"]+")', self.text, re.M)
        return [(self.text.count("\n", 0, m.start()) + 1, m.group(1)) for m in found]

    @cached_property
    def functions(self):
        return find_functions(self.code)


def sources(root):
    """Every text file of the project in a fixed order."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in SKIPPED_FOLDERS)
        for name in sorted(names):
            path = os.path.relpath(os.path.join(folder, name), root)
            if path == ".git" or os.path.splitext(name)[1] in DATA_SUFFIXES and name != "CMakePresets.json" or path.startswith(DATA_FOLDERS):
                continue
            if not os.path.islink(os.path.join(folder, name)):
                found.append(Source(root, path))
    return found


CPP_NOT_CODE = re.compile(
    r"""//(?:[^\n\\]|\\.|\\\n)*"""
    r"""|/\*.*?\*/"""
    r"""|R"(?P<raw>[^()\\\s]{0,16})\(.*?\)(?P=raw)\""""
    r"""|"(?:[^"\\\n]|\\.)*\""""
    r"""|(?<![0-9a-fA-F])'(?:[^'\\\n]|\\[^\n]+?)'"""
    r"""|^[ \t]*\#(?:[^\n\\]|\\\n|\\.)*""",
    re.S | re.M,
)


def blank_cpp(text):
    def blank(match):
        what = match.group()
        kept = '""' if what[0] in '"R' and len(what) > 1 else ""  # a literal stays an expression
        return kept + re.sub(r"[^\n]", " ", what)[len(kept):]

    return CPP_NOT_CODE.sub(blank, text)


SCOPE = re.compile(r"\b(?:class|struct|union)\b(?![^<]*>)")


def find_functions(code):
    """Functions of blanked C++: a head with parentheses before a brace, outside any other function or initialiser."""
    functions, stack = [], []  # stack entries: (kind, head, first line, where the head began)
    head_start, line, depth = 0, 1, 0  # depth: bodies and inner braces that are open
    for at, char in enumerate(code):
        if char == "\n":
            line += 1
        elif char == "{":
            head = code[head_start:at]
            kind = "body" if depth else kind_of_brace(head.strip())
            stack.append((kind, head.strip(), line - head.lstrip().count("\n"), head_start))
            depth += kind != "scope"
            head_start = at + 1
        elif char == "}" and stack:
            kind, head, first, began = stack.pop()
            depth -= kind != "scope"
            if kind == "body" and depth == 0 and "(" in head:
                functions.append(Function(function_name(head), first, line, head))
            head_start = began if kind == "inner" else at + 1
        elif char == ";":
            head_start = at + 1
    return functions


def kind_of_brace(head):
    """scope: a namespace or type; inner: a brace inside an expression or a constructor's initialiser; body: a function or a value."""
    if head.count("(") > head.count(")"):
        return "inner"
    if re.search(r"\)\s*(?:noexcept\s*)?:(?!:)", head) and re.search(r"[\w>]$", head) and not re.search(r"\b(const|noexcept|override|final)$", head):
        return "inner"
    before_paren = head.split("(")[0]
    if re.match(r"(?:inline\s+)?namespace\b|extern\s+\"\"|enum\b", head):
        return "scope"
    if SCOPE.search(before_paren) and not re.search(r"\boperator\b", before_paren) and not head.endswith((")", "const", "=")):
        return "scope"
    return "body"


def function_name(head):
    name = re.search(r"([~\w:]+|operator\S+)\s*\(", head)
    return name.group(1) if name else head.split("\n")[0][:60]
