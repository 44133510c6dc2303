"""Why memory ran out, and what would help there: from an error's text and what was known at that instant."""
