"""Experiments: the evidence behind the library's claims. They use the library's public names only.

::

    reproduce   list, run and report the paper's tables: what ``nsl reproduce`` calls
    tables/     the paper's tables, one module per table
    queue/      train and test the rows that have no result yet
    report/     from result files to Markdown and pictures
    costs       parameters, multiply-adds and step times of the equal-cost study
    records     result files: one JSON file per run, written once
    trials      single runs outside the tables, made to look for explanations
    stability   does a dynamic network train stably?
    theory/     the claims of Sections 5 and 6, one module per claim
    backbone    makes the backbones that come with the package
"""
