"""What both orchestrators must answer to runs that ended, while the work is still due.

Plain data without imports: it is also read in Airflow's environment.
"""

HOUR = 3600
# Name, how the runs ended, and after how many seconds since the last end another run is requested; None: never.
# "failed": a transient error; "unknown": one that may recur or not; "refused": one that recurs; "not permitted": one
# that somebody may put right elsewhere; "lost": canceled or killed; "idle": without effect.
CASES = [
    ("never run", [], 0),
    ("failed once", ["failed"], 0),
    ("failed twice", ["failed"] * 2, 0),
    ("failed three times", ["failed"] * 3, HOUR),
    ("failed four times", ["failed"] * 4, 2 * HOUR),
    ("failed often", ["failed"] * 9, 24 * HOUR),
    ("lost once", ["lost"], 0),
    ("lost three times", ["lost"] * 3, HOUR),
    ("lost, then failed", ["lost", "failed"], 0),
    ("without effect", ["idle"], HOUR),
    ("without effect twice", ["idle"] * 2, 2 * HOUR),
    ("failed, then without effect", ["failed", "idle"], 2 * HOUR),
    ("refused", ["refused"], None),
    ("failed, then refused", ["failed", "refused"], None),
    ("failed, nobody knows whether it would again", ["unknown"], 0),
    ("not permitted", ["not permitted"], HOUR),
    ("not permitted, twice", ["not permitted"] * 2, 2 * HOUR),
]
