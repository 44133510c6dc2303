"""``on_finding``: a function of the user that is called with every finding."""
