#!/usr/bin/env python3
"""How much of our parsers the fuzzers have been to: regions and branches of each file, counted by clang over the corpora.

    tests/fuzz/coverage.py [TARGET …]      all targets unless some are named

Builds the targets in build/fuzz-coverage, without sanitizers, runs each once over the seeds (tests/fuzz/corpus) and over what fuzzing has found (build/fuzz/corpus, where tools/test
leaves it), and prints a line a file. Needs clang, llvm-profdata and llvm-cov. Ends with 1 when a file is below --least.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/fuzz-coverage"
# What each target is there for. A file that several targets read counts with what they have been to together.
PARSERS = {
    "config_fuzz": ["gpu/models/config_reader.cpp", "gpu/models/gpt_oss_config.cpp"],
    "grammar_fuzz": ["protocol/grammar/regex_syntax.cpp", "protocol/grammar/regex.cpp", "protocol/grammar/schema_reading.cpp", "protocol/grammar/json_schema.cpp",
                     "protocol/grammar/json_pieces.cpp", "protocol/grammar/number_range.cpp", "protocol/grammar/matcher.cpp"],
    "harmony_parser_fuzz": ["protocol/harmony/header.cpp", "protocol/harmony/parser.cpp", "protocol/harmony/recovery.cpp"],
    "harmony_render_fuzz": ["protocol/harmony/message_from_json.cpp", "protocol/harmony/render.cpp", "protocol/harmony/schema_type.cpp", "protocol/harmony/history.cpp"],
    "http_fuzz": ["protocol/http/message.cpp", "protocol/http/error_reply.cpp"],
    "journal_fuzz": ["scheduler/journal.cpp", "scheduler/replay.cpp"],
    "json_text_fuzz": ["protocol/wire/json_text.cpp"],
    "keys_fuzz": ["protocol/curve/allow_list.cpp", "protocol/curve/key.cpp", "actors/api_keys.cpp", "actors/cost_file.cpp"],
    "openai_request_fuzz": ["protocol/openai/chat_messages.cpp", "protocol/openai/chat_request.cpp", "protocol/openai/completions.cpp", "protocol/openai/message_parts.cpp",
                            "protocol/openai/responses_items.cpp", "protocol/openai/responses_request.cpp", "protocol/openai/sampling.cpp", "protocol/openai/tokens.cpp"],
    "safetensors_fuzz": ["gpu/weights/safetensors.cpp", "gpu/weights/shard_index.cpp"],
    "settings_fuzz": ["actors/settings.cpp", "actors/fault_order.cpp", "actors/epoch_layout.cpp", "actors/expert_control_text.cpp", "actors/http_address.cpp"],
    "token_log_fuzz": ["actors/token_log_reader.cpp", "actors/token_log_record.cpp"],
    "tokenizer_json_fuzz": ["protocol/tokenizer/tokenizer_json.cpp", "protocol/tokenizer/special_tokens.cpp", "protocol/tokenizer/pretokenizer.cpp"],
    "wire_capnp_fuzz": ["protocol/wire/capnp_decode.cpp", "protocol/wire/check.cpp", "protocol/wire/codec.cpp"],
    "wire_json_fuzz": ["protocol/wire/json_decode.cpp", "protocol/wire/json_members.cpp"],
}


def build(targets, jobs):
    flags = "-O1 -g1 -fprofile-instr-generate -fcoverage-mapping"
    subprocess.run(["cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo", f"-DCMAKE_CXX_FLAGS_RELWITHDEBINFO={flags}", "-DCMAKE_CXX_COMPILER=clang++",
                    "-DCMAKE_C_COMPILER=clang", "-DALTHING_CUDA=OFF", "-DALTHING_FUZZ=ON", "-DALTHING_TESTS=OFF"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["ninja", "-C", BUILD, f"-j{jobs}", *targets], check=True, stdout=subprocess.DEVNULL)


def profile_of(target):
    """Runs the target over everything that there is for it."""
    raw = BUILD / f"{target}.profraw"
    corpora = [folder / target for folder in (ROOT / "tests/fuzz/corpus", ROOT / "build/fuzz/corpus") if (folder / target).is_dir()]
    run = subprocess.run([BUILD / "tests/fuzz" / target, "-runs=0", "-timeout=60", *corpora], env={**os.environ, "LLVM_PROFILE_FILE": str(raw)}, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{target} ended with {run.returncode}:\n{run.stderr[-2000:]}")
    return raw


def covered(targets, profile):
    """{file: {"regions": (covered, all), "branches": (covered, all)}}"""
    programs = [str(BUILD / "tests/fuzz" / target) for target in targets]
    command = ["llvm-cov", "export", "-summary-only", f"-instr-profile={profile}", programs[0], *(word for program in programs[1:] for word in ("-object", program))]
    told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {str(Path(entry["filename"]).resolve().relative_to(ROOT)): {kind: (entry["summary"][kind]["covered"], entry["summary"][kind]["count"]) for kind in ("regions", "branches")}
            for entry in told["data"][0]["files"] if Path(entry["filename"]).resolve().is_relative_to(ROOT)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=sorted(PARSERS), metavar="TARGET")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2, help="compilers at once (default: one a core)")
    parser.add_argument("--least", type=float, default=90.0, help="percent of the regions of a file that must have been reached (default: 90)")
    options = parser.parse_args()
    if missing := [tool for tool in ("clang++", "llvm-profdata", "llvm-cov") if not shutil.which(tool)]:
        print(f"skipped: {', '.join(missing)} not found (apt-get install clang llvm)\n0 passed, 0 failed, 1 skipped")
        return 0
    build(options.targets, options.jobs)
    profile = BUILD / "all.profdata"
    subprocess.run(["llvm-profdata", "merge", "-sparse", *map(profile_of, options.targets), "-o", profile], check=True)
    found, failed = covered(options.targets, profile), 0
    files = [file for target in options.targets for file in PARSERS[target]]
    print(f"{'file':44} {'regions':>16} {'branches':>16}")
    for file in files:
        cells = []
        for kind in ("regions", "branches"):
            reached, count = found[file][kind]
            cells.append(f"{reached}/{count} {100 * reached / max(count, 1):5.1f}%")
        reached, count = found[file]["regions"]
        low = 100 * reached < options.least * count
        failed += low
        print(f"{file:44} {cells[0]:>16} {cells[1]:>16}{'  below' if low else ''}")
    print(f"{len(files) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
