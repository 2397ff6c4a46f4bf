"""`python -m tests.golden [NAME …]` records the transcripts again, or those of these names."""

import sys

from tests.golden import TRANSCRIPTS, record

for path in TRANSCRIPTS:
    if not sys.argv[1:] or path.stem in sys.argv[1:]:
        record(path)
