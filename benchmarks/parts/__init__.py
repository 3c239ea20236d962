"""The measurements, one module for each thing that is promised. `run.py` lists them."""
