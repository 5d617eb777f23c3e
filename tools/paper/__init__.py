"""The paper, claim by claim: every experiment that the data at hand allows, and what came out.

    nox -s paper -- [TASK...] [--preset quick|small|full]

`tasks` runs an experiment with the packages' own functions and gives an `Outcome`; `claims` asks of
each outcome what the paper says of it; `page` writes both down.
"""
