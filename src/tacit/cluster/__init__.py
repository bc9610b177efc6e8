"""Where does work run that one machine is too small for? Here, or on a Ray cluster (the extra ``tacit[ray]``).

Teachers (:mod:`tacit.pate`), candidates (:mod:`tacit.tuning`) and sums over tables (:mod:`tacit.linear_model`) take
``backend="local"`` (the default, which needs nothing), ``backend="ray"``, or a :class:`Ray` that says what each task
needs. docs/howto/ray.md says what the cluster is trusted with.

>>> Ray(num_cpus=2, num_gpus=0.5)
Ray(num_cpus=2, num_gpus=0.5, retries=3, at_once=None, address=None, elastic=False)
"""

from tacit.cluster.ray import BACKENDS, ClusterError, Ray, backend_of
from tacit.cluster.seeds import seeded

__all__ = ["BACKENDS", "ClusterError", "Ray", "backend_of", "seeded"]
