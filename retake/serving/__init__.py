"""The common base of every HTTP service: a socket, a server that stops on request, bounded bodies, JSON responses,
files, and background loops. It knows no pipeline."""
