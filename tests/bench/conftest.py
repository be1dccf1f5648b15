import sys
from pathlib import Path

# The benchmarks are not installed with the package; they run from the checkout.
sys.path.insert(0, str(Path(__file__).parents[2]))
