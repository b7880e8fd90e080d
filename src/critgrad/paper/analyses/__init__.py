"""The paper's figures as analyses: a registry of records, one per name of ``critgrad analyze``."""

from .base import Analysis, Options
from .cost import RUNTIME, SPECTRUM
from .inside import DAMPING, GT_VS_GC, STALENESS
from .outcomes import ABLATION, CONVEX, NOISE, SENSITIVITY

ANALYSES: dict[str, Analysis] = {
    analysis.name: analysis
    for analysis in (STALENESS, GT_VS_GC, SENSITIVITY, NOISE, RUNTIME, CONVEX, SPECTRUM, DAMPING, ABLATION)
}

__all__ = ["ABLATION", "ANALYSES", "Analysis", "Options"]
