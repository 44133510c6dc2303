"""Memory in tests: the pytest plug-in. Each test run loads `plugin`, and the rest only where it is used."""
