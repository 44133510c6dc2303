"""``on_finding``: a function of the user that is told of every finding."""
