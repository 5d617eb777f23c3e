"""The paper, claim by claim and item by item: its experiments, figures and tables, measured here.

    nox -s paper -- [TASK...] [--size quick|small|full] [--preset paper]

`tasks` and `images` measure one training seed of a task with the packages' own functions; `records`
keeps what was measured in small files; everything else, `claims`, `items` and `page`, reads those
files and nothing else.
"""
