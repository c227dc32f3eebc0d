"""Who may include what, as data: the table of the project's folders and of the libraries each may use.

Invariant: scheduler/ knows nobody; gpu/, protocol/ and monitoring/ see only its vocabulary and never each other; actors/ wires them.
A library that is in no row may be used nowhere, so a new dependency is a decision made here.
"""

VOCABULARY = "scheduler/vocabulary"
PRODUCT = ("scheduler", "gpu", "protocol", "monitoring", "actors")

# folder → folders of ours it may include. The longest folder that matches a file counts.
OURS = {
    "scheduler/vocabulary": (VOCABULARY,),
    "scheduler": ("scheduler",),
    "gpu": ("gpu", VOCABULARY),
    "protocol": ("protocol", VOCABULARY),
    "monitoring": ("monitoring", VOCABULARY),
    "actors": PRODUCT,
    "tests": PRODUCT + ("tests",),
    "examples": ("protocol", VOCABULARY),
}

# start of an <include> → folders, or single files, that may use it. The longest start that matches counts.
LIBRARIES = {
    "caf/": ("actors", "tests/actors"),
    "CLI/": ("actors", "tests/fuzz/settings_fuzz.cpp"),
    "spdlog/": ("actors",),
    "openssl/": ("actors",),
    "capnp/": ("protocol", "tests/protocol"),
    "kj/": ("protocol", "tests/protocol"),
    "wire.capnp.h": ("protocol", "tests/protocol"),
    "zmq": ("protocol", "tests/protocol", "tests/actors", "tests/bench/load"),
    "nlohmann/": ("protocol", "tests"),
    "simdjson": ("gpu", "protocol", "tests"),
    "boost/": ("protocol/http/server.cpp",),  # 20 s to compile: one file
    "prometheus/": ("monitoring",),
    "civetweb": ("monitoring",),
    "fmt/": ("gpu", "protocol", "monitoring", "actors", "tests"),
    "cuda": ("gpu/cuda", "tests/gpu/cuda", "tests/bench"),
    "cooperative_groups": ("gpu/cuda",),
    "gtest/": ("tests",),
    "gmock/": ("tests",),
    "benchmark/": ("tests",),
}

# The operating system's C headers, which scheduler/ may not use either.
SYSTEM_STARTS = ("sys/", "linux/", "arpa/", "netinet/", "asm/")
SYSTEM = {
    "dirent.h", "dlfcn.h", "fcntl.h", "immintrin.h", "netdb.h", "poll.h", "pthread.h", "pty.h", "sched.h", "signal.h", "spawn.h", "stdlib.h",
    "syscall.h", "termios.h", "unistd.h",
}

# Standard headers that would let the world into the scheduler core.
IMPURE = {
    "atomic", "barrier", "chrono", "condition_variable", "ctime", "filesystem", "fstream", "future", "iomanip", "ios", "iostream", "istream",
    "latch", "locale", "mutex", "ostream", "random", "regex", "semaphore", "shared_mutex", "sstream", "stop_token", "streambuf", "thread",
    "unordered_map", "unordered_set", "cstdlib", "clocale",
}

STANDARD = IMPURE | {
    "algorithm", "any", "array", "bit", "bitset", "cassert", "cctype", "cerrno", "cfenv", "cfloat", "charconv", "cinttypes", "climits", "cmath",
    "compare", "complex", "concepts", "coroutine", "csetjmp", "csignal", "cstdarg", "cstddef", "cstdint", "cstdio", "cstring", "deque",
    "exception", "forward_list", "functional", "initializer_list", "iosfwd", "iterator", "limits", "list", "map", "memory", "memory_resource",
    "new", "numbers", "numeric", "optional", "queue", "ranges", "ratio", "scoped_allocator", "set", "source_location", "span", "stack",
    "stdexcept", "string", "string_view", "system_error", "tuple", "type_traits", "typeindex", "typeinfo", "utility", "valarray", "variant",
    "vector", "version",
}


def longest(table, key, is_match):
    """The entry of `table` with the longest name that matches `key`, or None."""
    names = [name for name in table if is_match(name, key)]
    return table[max(names, key=len)] if names else None


def is_in(folder, path):
    return path == folder or path.startswith(folder + "/")


def why_forbidden(path, spelling):
    """Why the file may not have this #include; None when it may."""
    header = spelling[1:-1]
    library = longest(LIBRARIES, header, lambda start, h: h.startswith(start))
    if library is not None:
        return None if any(is_in(f, path) for f in library) else f"{spelling} may be used in {', '.join(f if '.' in f else f + '/' for f in library)} only"
    if spelling[0] == '"':
        return why_not_ours(path, header)
    if header in STANDARD:
        return f"{spelling} has no place in the scheduler core: it must stay deterministic" if is_in("scheduler", path) and header in IMPURE else None
    if header in SYSTEM or header.startswith(SYSTEM_STARTS):
        return f"{spelling} has no place in scheduler/: the core asks nothing of the system" if is_in("scheduler", path) else None
    return f"{spelling} is neither standard nor in the table of libraries (tests/tidy/fences.py)"


def why_not_ours(path, header):
    allowed = longest(OURS, path, is_in)
    if allowed is None:
        return f"no row of the include table covers {path}"
    if header.startswith("..") or "/" not in header:
        return f'"{header}" is not relative to the root of the project'
    if any(is_in(folder, header) for folder in allowed):
        return None
    return f'"{header}" is out of bounds here; allowed: {", ".join(f + "/" for f in allowed)}'
