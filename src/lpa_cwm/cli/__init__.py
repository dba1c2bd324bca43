"""The command line: options as dataclasses, checked before any work; every command calls the library."""
