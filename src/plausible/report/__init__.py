"""What a person reads: tables of methods side by side, and where each method comes from."""
