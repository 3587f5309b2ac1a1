"""The image-job service: an HTTP API with a dispatcher and a sweeper inside, and workers that execute jobs on ComfyUI.

docs/images.md has the contract. State is in Redis, messages are in RabbitMQ, files in a bucket; PostgreSQL is optional.
"""
