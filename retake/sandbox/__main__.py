"""python -m retake.sandbox: run a sandbox until Ctrl-C."""

import sys

try:
    from retake.sandbox.command import comfyui, main
except KeyboardInterrupt:  # nothing has begun yet
    sys.exit(130)

__all__ = ["comfyui", "main"]

if __name__ == "__main__":
    main(prog_name="python -m retake.sandbox")
