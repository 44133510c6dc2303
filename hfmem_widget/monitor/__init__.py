"""How memory is watched: one monitor per process (`monitor.shared`), however many watches."""
