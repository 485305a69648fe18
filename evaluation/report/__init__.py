"""Report of an evaluation: tables, figures and an HTML page."""
