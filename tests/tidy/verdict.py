"""How tests of the rules and of the tools close."""


def close(results):
    """Takes (name, None | what is wrong | "skip " and why), prints what did not pass, then `N passed, N failed, N skipped`; the exit status."""
    passed = failed = skipped = 0
    for name, problem in results:
        if problem is None:
            passed += 1
        elif problem.startswith("skip "):
            skipped += 1
            print(f"skipped {name}: {problem[5:]}")
        else:
            failed += 1
            print(f"FAILED {name}: {problem}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if failed == 0 and passed > 0 else 1
