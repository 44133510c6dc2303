"""Why memory ran out, and what would help there: from the error's text and what was known at that instant."""
