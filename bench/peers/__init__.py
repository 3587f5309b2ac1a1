"""The cost of the same two things on other systems for durable work: an idle tick, and six durable steps.

Each `with_NAME.py` is a whole program for one system, as its documentation would write it. It is run as

    python with_NAME.py idle|steps FOLDER

and keeps its state in FOLDER, or in the server that DATABASE_URL or REDIS_URL names. `idle` checks for work, finds
none, and ends. `steps` does six steps, and records the result of each before the next begins. Their libraries are
installed beside Retake's, in an environment of their own: `make bench-peers`.
"""
