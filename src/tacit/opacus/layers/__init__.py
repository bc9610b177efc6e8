"""Which layers need a private replacement? None: tacit clips torch's own recurrent and attention layers.

The names of Opacus' replacements are kept for code that uses them; what is behind them is torch's layer. The keys of a
``state_dict`` are torch's, and weights that Opacus' layers saved are read (:mod:`tacit.opacus.layers.saved`).
"""

from tacit.opacus.layers.dp_multihead_attention import DPMultiheadAttention, SequenceBias
from tacit.opacus.layers.dp_rnn import DPGRU, DPLSTM, DPRNN

__all__ = ["DPGRU", "DPLSTM", "DPRNN", "DPMultiheadAttention", "SequenceBias"]
