"""`python -m tests.show` writes web/fixture.json, which the tests of the page's TypeScript compare with."""

from tests.show.fixture import FIXTURE, fixture_text

FIXTURE.write_text(fixture_text(), encoding="utf-8")
