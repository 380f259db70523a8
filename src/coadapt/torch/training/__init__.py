"""One replica's training: steps, batch size, optimizer, measurements."""
