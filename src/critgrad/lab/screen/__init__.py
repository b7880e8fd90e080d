"""What a terminal shows: tables, progress, the memory's slots. With rich where it is installed, else plain lines."""
