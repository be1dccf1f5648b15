"""What faulty and malicious contributors send: for tests, benchmarks and drills.

An attack is a pure function of the honest rows, an (h, d) tensor: the attackers know all of them, and
collude. It gives `count` rows to be put beside these. The `generator` is the only source of randomness, and
few need one. `flip_labels` is a fault in the data instead, from which a contributor computes a wrong
gradient in good faith.
"""

from outlast.rules.attacks.accidents import bit_flips, gaussian, infinite, not_a_number
from outlast.rules.attacks.data import flip_labels
from outlast.rules.attacks.directed import alie, alie_strength, ipm, mimic, sign_flip
from outlast.rules.attacks.optimised import worst_alie, worst_ipm

__all__ = [
    "alie",
    "alie_strength",
    "bit_flips",
    "flip_labels",
    "gaussian",
    "infinite",
    "ipm",
    "mimic",
    "not_a_number",
    "sign_flip",
    "worst_alie",
    "worst_ipm",
]
