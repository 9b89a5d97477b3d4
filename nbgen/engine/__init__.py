"""The engine process: torch, transformers, the scheduler. Nothing here knows of HTTP or notebooks."""
