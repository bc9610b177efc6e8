"""How do I learn from teachers' noisy votes? PATE: private aggregation of teacher ensembles.

Teachers are trained on disjoint parts of the private data, split by person. Their noisy votes label public queries, and
a student is trained on the answers and published. Every answered query has three accounts: one holds for any votes, and
two depend on the votes.

>>> from tacit.pate import ConfidentGNMax
>>> votes = [[240, 10], [5, 245], [130, 120]]
>>> answers = ConfidentGNMax(threshold=200, check_noise=150, vote_noise=40, classes=2).answer(votes, queries=3)
>>> answers.privacy.claim < 0.5
True
"""

from tacit.pate.aggregators import Aggregator, ConfidentGNMax, GNMax, InteractiveGNMax, LNMax
from tacit.pate.answers import NO_ANSWER, Answers
from tacit.pate.counts import VoteCounts
from tacit.pate.smooth import SmoothnessError
from tacit.pate.teachers import Teachers, TeacherWarning

__all__ = [
    "NO_ANSWER",
    "Aggregator",
    "Answers",
    "ConfidentGNMax",
    "GNMax",
    "InteractiveGNMax",
    "LNMax",
    "SmoothnessError",
    "TeacherWarning",
    "Teachers",
    "VoteCounts",
]
