"""Real pictures and videos, made on this machine: sizing, placeholder, mock."""
