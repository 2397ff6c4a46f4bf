"""How long it takes: algorithms, libraries, contention, chunks, and the bound."""
