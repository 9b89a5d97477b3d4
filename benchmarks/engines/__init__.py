"""One module an engine: how it loads a checkpoint and continues prompts. Each runs as a process of its own."""
