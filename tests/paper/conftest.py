"""Makes what lies here importable by the tests of the folders below."""
