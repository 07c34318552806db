"""Tables of people: one reading of a cell, whatever container it lies in."""
