"""What every HTTP service of ours stands on: a socket, a server that ends when it is told to, bounded bodies, answers
in JSON, files, and loops in the background. It knows no pipeline.
"""
