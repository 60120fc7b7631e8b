"""The report: from result files to Markdown and pictures.

``row_results`` reads the files, ``comparison`` compares rows, ``table_text`` and ``footnotes`` turn
one table into Markdown, ``pictures`` draws, and ``write`` puts everything into its place.
"""

from .write import Report

__all__ = ["Report"]
