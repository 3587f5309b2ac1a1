"""The operator's console: python -m retake status, show, retry …"""

from retake.console.command import main

if __name__ == "__main__":
    main(prog_name="python -m retake")
