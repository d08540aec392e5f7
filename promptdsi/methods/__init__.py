"""Methods: whole systems behind one contract, one file each."""
