"""What all parts share: declared measurements, their report and pictures, labels, processes."""
