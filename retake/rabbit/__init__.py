"""The RabbitMQ client: exchanges and queues, publisher confirms, consumers, reconnection. It knows no pipeline.

Threaded programs use `broker.Broker`; below it, aio-pika runs in the event loop of one thread.
"""
