from tests.show.chromium import collect_leftovers


def pytest_runtest_logfinish() -> None:
    collect_leftovers()
