"""The whole image-job service on one machine: Redis, RabbitMQ, PostgreSQL, a stand-in of ComfyUI, the API and workers
as children of one process, which starts them, starts again what ends, and ends all of them.

This is `python -m retake images up`. Nothing in it is needed where the servers are somebody else's.
"""
