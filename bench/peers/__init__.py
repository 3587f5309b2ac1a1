"""What other systems for durable work cost for the same two things: an idle tick, and six durable steps.

Each `with_NAME.py` is a whole program of one system, as its documentation writes one. It is run as

    python with_NAME.py idle|steps FOLDER

and keeps what it keeps in FOLDER, or in the server that DATABASE_URL or REDIS_URL names. `idle` looks whether there is
something to do, finds nothing, and ends. `steps` does six steps, the result of each on record before the next begins.
Their libraries are installed beside Retake's, in an environment of their own: `make bench-peers`.
"""
