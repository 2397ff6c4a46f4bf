"""The soak: the engines, the fault tests, the benches and the verbs, many times, under load and while things break.

`make soak` runs it; `python -m benchmarks.soak --help` says what can be chosen. Each trial's outcome is added to
build/soak/trials.jsonl as it happens, and a second start goes on where the first one stopped. The figures go to
benchmarks/results/soak.json and docs/reliability.md; what a failed trial said is kept in build/soak/failed.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is loaded: only a process with one thread can fork
os.environ.setdefault("OMP_NUM_THREADS", "1")
