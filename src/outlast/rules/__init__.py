"""Rules: how contributions become one update, also when some of them are wrong.

    update = rules.TrimmedMean(f=2)(updates)
    update = (rules.NNM(f=2) | rules.TrimmedMean(f=2))(state_dicts)

This package stands by itself: it needs torch and nothing else of Outlast. See `docs/trust.md` for which
rule when.
"""

from outlast.rules import attacks
from outlast.rules.bucketing import Bucketing
from outlast.rules.bulyan import Bulyan
from outlast.rules.centred_clipping import CentredClipping, Following
from outlast.rules.clip_norms import ClipNorms
from outlast.rules.compiling import eager
from outlast.rules.geometric_median import GeometricMedian
from outlast.rules.krum import Krum, MultiKrum
from outlast.rules.mda import MDA
from outlast.rules.mean import Mean
from outlast.rules.median import Median
from outlast.rules.nnm import NNM
from outlast.rules.plan import Plan
from outlast.rules.rule import Chain, Rule, Stage
from outlast.rules.trimmed_mean import TrimmedMean

__all__ = [
    "MDA",
    "NNM",
    "Bucketing",
    "Bulyan",
    "CentredClipping",
    "Chain",
    "ClipNorms",
    "Following",
    "GeometricMedian",
    "Krum",
    "Mean",
    "Median",
    "MultiKrum",
    "Plan",
    "Rule",
    "Stage",
    "TrimmedMean",
    "attacks",
    "eager",
]
