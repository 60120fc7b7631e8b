"""What several commands share: options, progress bars, tables and reports."""
