#!/usr/bin/env python3
"""Checks the habits of the project that no compiler checks: fences, sizes, banned calls, leftovers, dead files, format, the file table.

    tests/tidy/tidy.py [ROOT] [--only RULE]

Prints each violation as path:line: what to do, and closes with `N passed, N failed, N skipped`, one for each rule.
"""

import argparse
import sys
from pathlib import Path

from rules import RULES, Skipped
from source import sources


def check(root, rules):
    """{rule name: list of violations, or the reason why it was skipped}"""
    files = sources(root)
    found = {}
    for rule in rules:
        try:
            found[rule.__name__] = list(rule(files, root))
        except Skipped as reason:
            found[rule.__name__] = str(reason)
    return found


def main():
    parser = argparse.ArgumentParser(description="Checks the habits of the project that no compiler checks.")
    parser.add_argument("root", nargs="?", default=str(Path(__file__).resolve().parents[2]))
    parser.add_argument("--only", choices=[rule.__name__ for rule in RULES], action="append", help="check this rule; may be repeated")
    arguments = parser.parse_args()
    rules = [rule for rule in RULES if not arguments.only or rule.__name__ in arguments.only]
    passed = failed = skipped = 0
    for rule, (name, result) in zip(rules, check(arguments.root, rules).items()):
        if isinstance(result, str):
            skipped += 1
            print(f"skipped {name} ({rule.__doc__}): {result}")
        elif result:
            failed += 1
            print(f"FAILED {name} ({rule.__doc__}): {len(result)}")
            for violation in result:
                print(f"  {violation}")
        else:
            passed += 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if failed == 0 and passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
