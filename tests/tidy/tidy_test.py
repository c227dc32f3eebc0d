#!/usr/bin/env python3
"""Plants one violation of each kind into a small clean tree and checks that exactly the right rule finds it, where it is.

A rule that finds nothing is worthless, and so is one that cries at clean code: both are tested. Closes with `N passed, N failed, N skipped`.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import rules
from source import blank_cpp, find_functions
from tidy import check
from verdict import close

OPENING = "// Why this file exists, said in one sentence that is long enough.\n"
HEADER = OPENING + "#pragma once\n\nint answer();\n"
SOURCE = OPENING + '#include "{0}"\n\nint answer() {{ return 42; }}\n'

# A tree in which every rule has something to look at and nothing to say.
CLEAN = {
    "CMakeLists.txt": "althing_unit_tests(scheduler LINK x)\ngpu/cuda: probe.cu\nadd_test(NAME t COMMAND check.py)\n",
    "scheduler/core.hpp": HEADER,
    "scheduler/core.cpp": SOURCE.format("scheduler/core.hpp"),
    "scheduler/vocabulary/ids.hpp": HEADER,
    "gpu/tensor.hpp": HEADER,
    "gpu/tensor.cpp": SOURCE.format("gpu/tensor.hpp").replace("\n\n", '\n#include "scheduler/vocabulary/ids.hpp"\n\n', 1),
    "gpu/cuda/probe.cu": OPENING + "__global__ void kernel() {}\n",
    "tests/scheduler/core_test.cpp": OPENING + '#include "scheduler/core.hpp"\n\n#include <gtest/gtest.h>\n\nTEST(Core, answers) { EXPECT_EQ(answer(), 42); }\n',
    "tools/check.py": '#!/usr/bin/env python3\n"""Checks what has to be checked, and says so in a sentence."""\nprint("ok")\n',
    "ARCHITECTURE.md": "| file | job |\n|---|---|\n| `scheduler/core.hpp`, `.cpp` | the core |\n| `scheduler/vocabulary/ids.hpp` | ids |\n"
                       "| `gpu/tensor.hpp`, `.cpp` | tensors |\n| `gpu/cuda/probe.cu` | probe |\n| `tests/scheduler/*_test.cpp` | tests |\n| `tools/check.py` | check |\n",
}
LONG_BODY = "void f() {\n" + "  g();\n" * 80 + "}\n"
LONG_CONSTRUCTOR = "S::S(int a)\n    : a_{a},\n      b_([] { return 1; }),\n      c_{2} {\n" + "  g();\n" * 80 + "}\n"

# (rule, file, text appended to the clean file or the whole of a new one, what the violation says)
PLANTS = [
    ("includes", "gpu/tensor.cpp", '#include "scheduler/core.hpp"\n', "out of bounds"),
    ("includes", "scheduler/core.cpp", '#include "gpu/tensor.hpp"\n', "out of bounds"),
    ("includes", "gpu/tensor.cpp", "#include <caf/all.hpp>\n", "actors/ only"),
    ("includes", "gpu/tensor.cpp", "#include <cuda_runtime.h>\n", "may be used in gpu/cuda/"),
    ("includes", "gpu/tensor.cpp", "#include <zmq.hpp>\n", "protocol/"),
    ("includes", "scheduler/core.cpp", "#include <fmt/format.h>\n", "may be used in"),
    ("includes", "scheduler/core.cpp", "#include <unordered_map>\n", "deterministic"),
    ("includes", "scheduler/core.cpp", "#include <unistd.h>\n", "asks nothing"),
    ("includes", "gpu/tensor.cpp", '#include "tensor.hpp"\n', "not relative"),
    ("includes", "gpu/tensor.cpp", "#include <someones/library.h>\n", "neither standard"),
    ("file_length", "gpu/tensor.cpp", "// more\n" * 500, "500 are allowed"),
    ("function_length", "gpu/tensor.cpp", LONG_BODY, "f has 82 lines"),
    ("function_length", "gpu/tensor.cpp", LONG_CONSTRUCTOR, "S::S has 85 lines"),
    ("function_length", "gpu/tensor.cpp", "namespace a {\nclass B {\n" + LONG_BODY + "};\n}\n", "f has 82 lines"),
    ("function_length", "tools/check.py", "def f():\n" + "    print()\n" * 80, "f has 81 lines"),
    ("banned_calls", "gpu/tensor.cpp", "std::regex r;\n", "scanner"),
    ("banned_calls", "gpu/tensor.cpp", 'auto* v = getenv("X");\n', "configuration"),
    ("banned_calls", "gpu/tensor.cpp", 'int r = system("ls");\n', "no shell"),
    ("banned_calls", "gpu/tensor.cpp", 'int r = std::system(command.c_str());\n', "no shell"),
    ("banned_calls", "gpu/tensor.cpp", 'auto* p = popen("ls", "r");\n', "no shell"),
    ("banned_calls", "gpu/tensor.cpp", "char* c = strcpy(a, b);\n", "unbounded"),
    ("banned_calls", "gpu/tensor.cpp", "int n = sprintf(a, b);\n", "unbounded"),
    ("banned_calls", "gpu/tensor.cpp", "int n = rand();\n", "keyed"),
    ("banned_calls", "tests/scheduler/core_test.cpp", "void f() { std::this_thread::sleep_for(x); }\n", "luck"),
    ("banned_calls", "tests/scheduler/core_test.cpp", "void f() { usleep(10); }\n", "luck"),
    ("banned_calls", "tests/scheduler/core_test.cpp", "void f() { sleep(1); }\n", "luck"),
    ("banned_calls", "tests/scheduler/core_test.cpp", "TEST(A, b) { GTEST_SKIP(); }\n", "says why"),
    ("banned_calls", "tests/scheduler/core_test.cpp", "TEST(A, b) { EXPECT_TRUE(true); }\n", "asserts nothing"),
    ("banned_calls", "gpu/tensor.cpp", 'void f() { std::printf("here"); }\n', "does not print"),
    ("banned_calls", "gpu/tensor.cpp", "void f() { std::cerr << 1; }\n", "does not print"),
    ("banned_calls", "tools/check.py", 'import os\nos.system("ls")\n', "no shell"),
    ("scheduler_purity", "scheduler/core.cpp", "std::thread t;\n", "no place"),
    ("scheduler_purity", "scheduler/core.cpp", "std::unordered_set<int> s;\n", "no place"),
    ("scheduler_purity", "scheduler/core.cpp", "auto n = std::chrono::seconds(1);\n", "no place"),
    ("scheduler_purity", "scheduler/core.cpp", 'int n = std::snprintf(b, 9, "%5.2f", x);\n', "locale"),
    ("scheduler_purity", "scheduler/core.cpp", "void f() { throw 1; }\n", "no place"),
    ("words", "gpu/tensor.cpp", "// FIX" "ME\n", "finish it"),
    ("words", "gpu/tensor.cpp", "// TO" "DO: later\n", "a kind"),
    ("words", "gpu/tensor.cpp", "// see /wor" "k/shared\n", "one machine"),
    ("words", "tools/check.py", "# see vllm#12" "345\n", "means nothing"),
    ("words", "ARCHITECTURE.md", "made in this work" "place\n", "not about"),
    ("words", "gpu/tensor.cpp", "#if " "0\n#endif\n", "dead code"),
    ("opening_comment", "gpu/CUDA.cmake", "set(a b)\n", "say in"),
    ("opening_comment", "gpu/tensor_more.cpp", '#include "gpu/tensor.hpp"\n', "say in"),
    ("opening_comment", "gpu/tensor_more.cpp", "// Tensor.\nint x;\n", "say in"),
    ("file_length", "gpu/unicode_table.cpp", OPENING + "// x\n" * 600, "500 are allowed"),
    ("dead_files", "gpu/lonely.hpp", HEADER, "nobody includes"),
    ("dead_files", "gpu/cuda/lonely.cu", OPENING, "no CMake target"),
    ("dead_files", "tests/gpu/a_test.cpp", OPENING, "no CMake target"),
    ("dead_files", "tests/scheduler/lonely.cpp", OPENING, "no CMake target"),
    ("dead_files", "tools/lonely.py", '"""A script that nobody names, described in a sentence."""\n', "no other file"),
    ("format_drift", "gpu/tensor.cpp", "int   x ;\n", "clang-format -i"),
    ("architecture", "gpu/extra.cpp", OPENING, "has no row for gpu/extra.cpp"),
    ("architecture", "ARCHITECTURE.md", "| `gpu/tensor.cpp` | again |\n", "has a row already"),
    ("architecture", "ARCHITECTURE.md", "| `gpu/gone.cpp` | gone |\n", "does not exist"),
    ("architecture", "ARCHITECTURE.md", "| `gpu/*.cpp` | all |\n", "by pattern"),
]

# Things that look like violations and are none.
INNOCENT = [
    ("banned_calls", "gpu/tensor.cpp", "// getenv( and rand() in a comment\nconst char* s = \"system(\";\nauto y = x.system(from);\nint brand(int);\n"),
    ("banned_calls", "gpu/tensor.cpp", "int n = std::snprintf(a, 4, b);\nauto r = R\"x(popen(\")x\";\n"),
    ("banned_calls", "tests/scheduler/core_test.cpp", 'TEST(A, b) { GTEST_SKIP() << "no GPU"; }\n'),
    ("function_length", "gpu/tensor.cpp", "constexpr int table[] = {\n" + "    1,\n" * 90 + "};\n"),
    ("function_length", "gpu/tensor.cpp", "class A {\n" + "  int f() { return 1; }\n" * 90 + "};\n"),
    ("function_length", "gpu/cuda/probe.cu", "__global__ void k() {\n" + "  g();\n" * 90 + "}\n"),
    ("file_length", "gpu/unicode_table.cpp", "// Generated by tools/check.py, which says all there is to say.\n" + "// x\n" * 600),
    ("words", "gpu/tensor.cpp", "// TO" "DO(perf): tile it; colours like &#1234; and a#b\n"),
    ("scheduler_purity", "scheduler/core.cpp", "// std::thread in a comment\nint thread = 1;\n"),
    ("includes", "tests/scheduler/core_test.cpp", "#include <thread>\n"),
]


def plant(root, path, text):
    file = Path(root) / path
    file.parent.mkdir(parents=True, exist_ok=True)
    old = file.read_text() if file.exists() else ""
    # Includes go to the top, where they would be.
    file.write_text(old.replace("\n", "\n" + text, 1) if text.startswith("#include") and old else old + text)


def results(rule, path="", text=""):
    with tempfile.TemporaryDirectory(prefix="althing-tidy-") as root:
        for name, content in CLEAN.items():
            plant(root, name, content)
        shutil.copy(Path(__file__).resolve().parents[2] / ".clang-format", root)
        if path:
            plant(root, path, text)
        return check(root, [getattr(rules, rule)])[rule]


def run():
    """(name, problem or None or a reason to skip starting with 'skip') for each case."""
    for rule in rules.RULES:
        found = results(rule.__name__)
        yield f"clean tree, {rule.__name__}", f"skip {found}" if isinstance(found, str) else ("; ".join(map(str, found)) or None)
    for rule, path, text, says in PLANTS:
        found = results(rule, path, text)
        name = f"{rule} finds {text[:40]!r} in {path}"
        if isinstance(found, str):
            yield name, f"skip {found}"
        elif not any(v.path in (path, "ARCHITECTURE.md") and says in v.message for v in found):
            yield name, f"found only: {[str(v) for v in found]}"
        else:
            yield name, None
    for rule, path, text in INNOCENT:
        found = results(rule, path, text)
        yield f"{rule} leaves {text[:40]!r} alone", f"skip {found}" if isinstance(found, str) else ("; ".join(map(str, found)) or None)
    text = 'a = "//"; // "x\nchar c = \'"\';\nint n = 1\'000; /* { */ f("{");\n'
    blanked = blank_cpp(text)
    yield "blanking keeps lines and columns", None if len(blanked) == len(text) and blanked.count("\n") == 3 and "{" not in blanked else repr(blanked)
    names = [(f.name, f.first, f.last) for f in find_functions("namespace a {\nint f(int x)\n{\n}\nA::~A() {}\nbool operator==(A a) {\n}\n}\n")]
    yield "functions are found with their lines", None if names == [("f", 2, 4), ("A::~A", 5, 5), ("operator==", 6, 7)] else str(names)
    planted, known = {rule for rule, *_ in PLANTS}, {rule.__name__ for rule in rules.RULES}
    yield "every rule has a plant", None if planted == known else str(known - planted)


if __name__ == "__main__":
    sys.exit(close(run()))
