"""The small chat model that ships with nbgen: its text, its training and its evaluation.

`model/` holds the result in transformers' own format. Nothing here is imported by the engine or the server.
"""
