"""Chaos runs: random jobs with known ends, random deaths and faults, and an audit of everything afterwards.

Run by hand, as root, for minutes or hours:

    python -m tests.chaos --seed 7 --minutes 10
    python -m tests.chaos --agent-kills 200 --nodes 3 --faults kill,stop,network

What is decided is the same for the same seed; what comes of it is not, since processes are faster or slower. `plan`
decides, `world` does, `audit` judges.
"""
