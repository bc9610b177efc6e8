"""What does a mechanism cost? Certified privacy accounting with numpy and scipy only.

Describe what ran, then ask for its price: an interval that contains the true ε. You may claim the upper end.

>>> from tacit import accounting as acc
>>> step = acc.PoissonSampled(acc.Gaussian(1.1), rate=256 / 60000)
>>> acc.epsilon(step * 3516 + acc.Laplace(10.0), delta=1e-5).upper < 1.5
True

docs/howto/price-a-run.md shows the common tasks; docs/explanation/prices.md says what the numbers rest on.
"""

from tacit.accounting import accountants
from tacit.accounting.accountants import AccountantPrice, Comparison, NotApplicable, compare
from tacit.accounting.alternatives import Either, one_of
from tacit.accounting.attacks import Risk, plot, risk
from tacit.accounting.base import ADJACENCIES, Composed, Mechanism, from_dict, nothing
from tacit.accounting.bound import Bound
from tacit.accounting.brought import LossLaw, Outcomes, ProfileDP, RenyiDP, TradeoffDP, to_dp_accounting
from tacit.accounting.calibration import calibrate, calibrate_delta, calibrate_rate, calibrate_steps
from tacit.accounting.correlated import choose_bands
from tacit.accounting.curves import Profile, Tradeoff, gdp_equivalent, profile, tradeoff
from tacit.accounting.errors import AccountingError, AdjacencyError, PrivacyWarning, UnitError
from tacit.accounting.filters import FilterExceeded, RenyiFilter, RenyiOdometer
from tacit.accounting.mechanisms import (
    GDP,
    ZCDP,
    ApproxDP,
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    PureDP,
    RandomizedResponse,
)
from tacit.accounting.over_steps import StepCurve, epsilon_over_steps
from tacit.accounting.poisson import PoissonSampled
from tacit.accounting.pricing import delta, epsilon
from tacit.accounting.privacy import Privacy, stated_adjacency
from tacit.accounting.renyi import renyi
from tacit.accounting.samplers import SamplerPrices, compare_samplers
from tacit.accounting.sampling import (
    BallsInBins,
    CyclicPoissonSampled,
    FixedSizeSampled,
    Shuffled,
    TruncatedPoissonSampled,
)
from tacit.accounting.selection import Selected
from tacit.accounting.votes import LaplaceVotes, SmoothRelease, VoteCheck, Votes

__all__ = [
    "ADJACENCIES",
    "GDP",
    "ZCDP",
    "AccountantPrice",
    "AccountingError",
    "AdjacencyError",
    "ApproxDP",
    "BallsInBins",
    "Bound",
    "Comparison",
    "Composed",
    "CyclicPoissonSampled",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Either",
    "ExponentialMechanism",
    "FilterExceeded",
    "FixedSizeSampled",
    "Gaussian",
    "Laplace",
    "LaplaceVotes",
    "LossLaw",
    "Mechanism",
    "NotApplicable",
    "Outcomes",
    "PoissonSampled",
    "Privacy",
    "PrivacyWarning",
    "Profile",
    "ProfileDP",
    "PureDP",
    "RandomizedResponse",
    "RenyiDP",
    "RenyiFilter",
    "RenyiOdometer",
    "Risk",
    "SamplerPrices",
    "Selected",
    "Shuffled",
    "SmoothRelease",
    "StepCurve",
    "Tradeoff",
    "TradeoffDP",
    "TruncatedPoissonSampled",
    "UnitError",
    "VoteCheck",
    "Votes",
    "accountants",
    "calibrate",
    "calibrate_delta",
    "calibrate_rate",
    "calibrate_steps",
    "choose_bands",
    "compare",
    "compare_samplers",
    "delta",
    "epsilon",
    "epsilon_over_steps",
    "from_dict",
    "gdp_equivalent",
    "nothing",
    "one_of",
    "plot",
    "profile",
    "renyi",
    "risk",
    "stated_adjacency",
    "to_dp_accounting",
    "tradeoff",
]
