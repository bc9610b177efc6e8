"""How does one private run use many processes, without a change in what it guarantees?

A launcher (torchrun, Slurm, accelerate) starts the same script on every rank, the script calls
``torch.distributed.init_process_group`` and then the same :class:`tacit.sgd.Training` as on one machine.

- :mod:`~tacit.sgd.sharding.ranks`: who takes part, what all must agree on, and who alone speaks to the ledger.
- :mod:`~tacit.sgd.sharding.shards`: which piece of each parameter a rank holds (``fully_shard``, tensor parallel),
  how clipped sums and noise reach it, and how norms are completed.
- :mod:`~tacit.sgd.sharding.checkpoints`: checkpoints that many ranks write together and any number of ranks reads.
"""
