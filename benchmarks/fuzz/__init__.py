"""Fuzzing of all files that may come from outside.

    python -m benchmarks.fuzz [--num-inputs N] [--seed S] [--kinds NAME ...]

Each kind of file has a valid example, which seeded mutations damage: at the level of
bytes, of the JSON grammar, and of the file system. Reading a damaged file must raise
nothing but a one-line `UserError`, take at most five seconds of CPU time and 1 GB of
memory, and open no file outside the folders of the example and of the installation.
"""
