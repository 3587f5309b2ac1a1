"""The kinds of channels. Each file speaks one service's protocol; none is imported before a message is due."""
