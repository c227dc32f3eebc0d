"""The rules. Each is a generator of violations over all sources; its docstring is what tidy prints as its name.

Invariant: a rule names the file, the line and what to do, and knows nothing of the others.
"""

import ast
import fnmatch
import os
import re
import shutil
import subprocess

from fences import why_forbidden
from source import Violation

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
OPENING_CHARACTERS_MIN = 20
POINTER_CHARACTERS_MIN = 10

# The programs that made the tiny model stay as they were run; changing them would make the model's origin untrue.
FROZEN = "examples/models/training"

LIBRARY_FOLDERS = ("scheduler", "gpu", "protocol", "monitoring")
GLOBBED_FOLDERS = LIBRARY_FOLDERS + ("actors",)


class Skipped(Exception):
    """A rule that cannot run here; its text says why."""


def includes(files, root):
    """includes stay inside their fences"""
    for file in files:
        for line, spelling in file.includes if file.is_cpp else ():
            if why := why_forbidden(file.path, spelling):
                yield Violation(file.path, line, why)


def file_length(files, root):
    """files have at most 500 lines"""
    for file in files:
        count = len(file.lines) - 1
        if file.is_source and not file.is_table and not file.is_below(FROZEN) and count > FILE_LINES_MAX:
            yield Violation(file.path, 0, f"{count} lines, {FILE_LINES_MAX} are allowed: look for the noun that wants out")


def function_length(files, root):
    """functions have at most 70 lines"""
    for file in files:
        if file.is_table or file.is_below(FROZEN):
            continue
        found = []
        if file.is_cpp:
            found = [(f.name, f.first, f.length) for f in file.functions if not re.search(r"\b__(global|device)__\b", f.head)]
        elif file.is_python:
            nodes = [n for n in ast.walk(ast.parse(file.text)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
            found = [(n.name, n.lineno, n.end_lineno - n.lineno + 1) for n in nodes]
        for name, line, length in found:
            if length > FUNCTION_LINES_MAX:
                yield Violation(file.path, line, f"{name} has {length} lines, {FUNCTION_LINES_MAX} are allowed")


# (pattern in code, applies to the file, what to do instead)
CALLS = (
    (r"\bstd::w?regex\b", lambda f: True, "std::regex overflows the stack on long input: write a scanner"),
    (r"\bgetenv\s*\(", lambda f: not re.match(r"actors/configuration", f.path), "the environment is read in actors/configuration only"),
    (r"(?:\bstd|(?<![\w>]))::system\s*\(|(?<![\w.>])system\s*\(\s*(?:\"\"|\w+\.c_str)", lambda f: True, "no shell: exec the program with its arguments"),
    (r"\bpopen\s*\(", lambda f: True, "no shell: exec the program with its arguments"),
    (r"\b(?:strcpy|strcat|sprintf|vsprintf|gets)\s*\(", lambda f: True, "unbounded write: use std::string or snprintf"),
    (r"(?<![\w.>])(?:std::)?s?rand\s*\(", lambda f: True, "randomness is keyed: pass a seeded generator"),
    (r"\b(?:sleep_for|sleep_until|usleep|nanosleep)\s*\(|(?<![\w.>])sleep\s*\(", lambda f: f.is_below("tests"), "tests wait for an event, never for luck"),
    (r"\bGTEST_SKIP\s*\(\s*\)\s*;", lambda f: True, "a skipped test says why: GTEST_SKIP() << reason"),
    (r"\b(?:EXPECT|ASSERT)_TRUE\s*\(\s*true\s*\)|\bSUCCEED\s*\(", lambda f: True, "this asserts nothing"),
    (r"(?<![\w.>])(?:std::)?(?:printf|puts|perror)\s*\(|\bstd::(?:cout|cerr|clog)\b|\bfprintf\s*\(\s*std(?:err|out)\b",
     lambda f: f.is_below(*LIBRARY_FOLDERS), "a library does not print: return an Error or a value"),
    (r"\busing\s+namespace\s+std\s*;", lambda f: True, "name what you use"),
)
PYTHON_CALLS = (
    (r"\bos\.(?:system|popen)\s*\(|\bshell\s*=\s*True", "no shell: pass a list of arguments"),
    (r"(?<![\w.])(?:eval|exec)\s*\(|\bpickle\b", "input is never code"),
    (r"\btime\.sleep\s*\(\s*[1-9]", "wait for an event, polling at most every tenth of a second"),
)


def banned_calls(files, root):
    """no banned calls"""
    for file in files:
        rules = CALLS if file.is_cpp else ()
        if file.is_python and not file.is_below("tests/tidy"):
            rules = [(pattern, lambda f: True, why) for pattern, why in PYTHON_CALLS]
        for pattern, applies, why in rules:
            if applies(file):
                for match in re.finditer(pattern, file.code):
                    yield Violation(file.path, file.code.count("\n", 0, match.start()) + 1, f"{match.group().strip()}: {why}")


IMPURE_WORDS = (
    r"\bstd::(?:jthread|thread|mutex|shared_mutex|atomic|chrono|random_device|mt19937\w*|unordered_\w+|\w*stringstream|hash|async)\b",
    r"\b(?:time|clock_gettime|gettimeofday)\s*\(\s*(?:NULL|nullptr|CLOCK_)",
    r"\b(?:strtod|strtof|atof|std::stod|std::stof|setlocale)\s*\(",
    r"\bthrow\b",
)


def scheduler_purity(files, root):
    """the scheduler core is pure"""
    for file in files:
        if not (file.is_cpp and file.is_below("scheduler")):
            continue
        for pattern in IMPURE_WORDS:
            for match in re.finditer(pattern, file.code):
                # Ids offer std::hash to others; the core itself never iterates over a hash.
                if not (match.group() == "std::hash" and file.is_below("scheduler/vocabulary")):
                    yield Violation(file.path, file.code.count("\n", 0, match.start()) + 1, f"{match.group()} has no place in the core")
        for number, line in enumerate(file.lines, 1):
            if re.search(r'"[^"]*%[-+ 0#]*[\d.*]*l?[aefgAEFG]', line):
                yield Violation(file.path, number, "a float formatted by the locale: write its bits or use std::to_chars")


# (pattern in the whole text, why). Written in pieces so that this file does not contain what it forbids.
WORDS = (
    (r"\bFIX" r"ME\b|\bXX" r"X\b", "finish it, or describe it as TO" "DO(kind)"),
    (r"\bTO" r"DO(?!\([a-z]+\))", "give it a kind: TO" "DO(perf), TO" "DO(cuda)"),
    (r"(?<![\w.])/wor" r"k/|/home/\w+/|/root/|/tmp/brief", "a path of one machine"),
    (r"(?<!&)#\d{2,6}\b|\b(?:GH|PR)[ -]?#?\d+\b|\bissue \d+", "a number that means nothing in this repository: say what it was about"),
    (r"(?i)\bwork" r"place\b|\bclau" r"de\b|\banthro" r"pic\b|\bco-authored" r"-by\b", "not about the project"),
    (r"^[<>]{7} |^={7}$", "a merge conflict"),
    (r"^#if 0\b", "dead code"),
)


def words(files, root):
    """no leftovers and no traces of one machine"""
    for file in files:
        if file.path == "LICENSE" or file.is_below("tests/tidy", FROZEN):
            continue
        for pattern, why in WORDS:
            for match in re.finditer(pattern, file.text, re.M):
                yield Violation(file.path, file.text.count("\n", 0, match.start()) + 1, f"\"{match.group().strip()}\": {why}")


def opening_comment(files, root):
    """every file opens with why it exists"""
    headers = {file.path for file in files if file.suffix == ".hpp"}
    for file in files:
        if not file.is_source or file.name == "CMakeLists.txt":
            continue
        text = re.sub(r"\A#!.*\n", "", file.text)
        opening = re.match(r'\s*(?:"""(?P<doc>.*?)"""|(?P<comment>(?:[ \t]*(?://|#(?!\s*(?:include|pragma|define|if)))[^\n]*\n)+))', text, re.S)
        said = "" if opening is None else re.sub(r"[\s/#]+", " ", opening.group("doc") or opening.group("comment") or "")
        # The implementation of a header may point to it.
        least = POINTER_CHARACTERS_MIN if file.suffix in {".cpp", ".cu"} and os.path.splitext(file.path)[0] + ".hpp" in headers else OPENING_CHARACTERS_MIN
        if len(said.strip()) < least:
            yield Violation(file.path, 1, "say in 3 to 10 lines why this file exists and which invariant it keeps")


def dead_files(files, root):
    """no dead files"""
    included = {spelling[1:-1] for file in files for _, spelling in file.includes if file.is_cpp}
    cmake = "\n".join(f.text for f in files if f.name == "CMakeLists.txt" or f.suffix == ".cmake")
    globs = [os.path.dirname(f.path) + "/" + g for f in files if f.name == "CMakeLists.txt" for g in GLOB.findall(f.text)]
    for file in files:
        if file.suffix in {".hpp", ".cuh"} and file.path not in included:
            yield Violation(file.path, 0, "nobody includes this header")
        elif file.suffix in {".cpp", ".cu"} and not is_built(file, cmake, globs):
            yield Violation(file.path, 0, "no CMake target builds this file")
        elif file.is_script and not is_named_elsewhere(file, files):
            yield Violation(file.path, 0, "no other file names this script")


# A pattern of file names in a CMakeLists.txt, below its own folder.
GLOB = re.compile(r"\$\{CMAKE_CURRENT_SOURCE_DIR\}/([\w/]*\*[\w.]+)")


def is_built(file, cmake, globs):
    folder = os.path.dirname(file.path)
    if any(os.path.dirname(g) == folder and fnmatch.fnmatchcase(file.name, os.path.basename(g)) for g in globs):
        return True
    if re.search(rf"(?<![\w]){re.escape(file.name)}\b", cmake) or re.search(rf"(?<![\w/]){re.escape(file.stem)}(?![\w.])", cmake):
        return True
    if file.suffix == ".cpp" and file.is_below(*GLOBBED_FOLDERS):
        return not file.is_below("gpu/cuda")
    folder = os.path.basename(os.path.dirname(file.path))
    if file.stem.endswith("_test"):
        return f"althing_unit_tests({folder} " in cmake
    return file.path.startswith("tests/fuzz/") and file.stem.endswith("_fuzz")


def is_named_elsewhere(file, files):
    pattern = re.compile(rf"(?<![\w-]){re.escape(file.name)}(?![\w-])|\b(?:import|from) {re.escape(file.stem)}\b")
    return any(pattern.search(other.text) for other in files if other.path != file.path and other.name != "ARCHITECTURE.md")


def format_drift(files, root):
    """C++ is as clang-format leaves it"""
    if shutil.which("clang-format") is None:
        raise Skipped("clang-format is not installed; tools/install-dependencies --test installs it")
    paths = [file.path for file in files if file.is_cpp]
    for start in range(0, len(paths), 40):
        run = subprocess.run(["clang-format", "--dry-run", "-Werror", *paths[start:start + 40]], cwd=root, capture_output=True, text=True)
        seen = set()
        for path, line in re.findall(r"^([^\s:][^:\n]*):(\d+):\d+: error: code should be", run.stderr, re.M):
            if path not in seen:
                seen.add(path)
                yield Violation(path, int(line), "run clang-format -i on it")
        if run.returncode != 0 and not seen:
            yield Violation(paths[start], 0, f"clang-format failed: {run.stderr.strip()[:300]}")


def architecture(files, root):
    """ARCHITECTURE.md gives each file one line"""
    page = next((file for file in files if file.path == "ARCHITECTURE.md"), None)
    listed = [f.path for f in files if f.is_source and f.name != "CMakeLists.txt"]
    if page is None:
        yield Violation("ARCHITECTURE.md", 0, f"is missing: it must give each of {len(listed)} source files a table row | `path` | its job |")
        return
    rows = [(number, name) for number, line in enumerate(page.lines, 1) for name in row_names(line)]
    exact = {}
    for number, name in rows:
        exact.setdefault(name, []).append(number)
    patterns = [name for name in exact if "*" in name]
    for path in listed:
        if len(exact.get(path, [])) > 1:
            yield Violation("ARCHITECTURE.md", exact[path][1], f"{path} has a row already, on line {exact[path][0]}")
        elif path not in exact and not any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns):
            yield Violation("ARCHITECTURE.md", 0, f"has no row for {path}: add | `{path}` | its job |")
    for name, numbers in exact.items():
        if "*" in name and not name.startswith(("tests/", "examples/")):
            yield Violation("ARCHITECTURE.md", numbers[0], f"the pattern {name}: only tests/ and examples/ may be listed by pattern")
        elif not fnmatch.filter([f.path for f in files], name) and not os.path.exists(os.path.join(root, name)):
            yield Violation("ARCHITECTURE.md", numbers[0], f"{name} does not exist")


def row_names(line):
    """Paths in the first cell of a table row. `a/b.hpp`, `.cpp` names a/b.hpp and a/b.cpp."""
    cell = re.match(r"\|([^|]*)\|", line)
    last = ""
    for name in re.findall(r"`([^`]+)`", cell.group(1)) if cell else ():
        last = os.path.splitext(last)[0] + name if name.startswith(".") and "/" not in name and last else name
        if "/" in last or "." in last:
            yield last


RULES = (
    includes, file_length, function_length, banned_calls, scheduler_purity, words, opening_comment, dead_files, format_drift, architecture,
)
