"""How do I train a private model on a table, without writing PyTorch? Estimators with the scikit-learn API.

scikit-learn is imported here and nowhere else in this room; ``tacit.sgd.Classifier`` loads this file on first use.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tacit import accounting as acc
from tacit.accounting.base import unit_of
from tacit.ledger import Ledger, surroundings
from tacit.ledger.fingerprint import table_of
from tacit.sgd.training.data import optional
from tacit.sgd.training.kept import drawn
from tacit.sgd.training.training import Training

#: The learning rate of a linear model. That of a network is ``RATE`` times the size of a batch over the length of the
#: noise in all its parameters, ``MOST_RATE`` at most: it follows n, d and ε, and all of it is public.
LINEAR_RATE, RATE, MOST_RATE = 2.0, 0.08, 0.5

_base = optional("sklearn.base", "an estimator of tacit.sgd")
_validation = optional("sklearn.utils.validation", "an estimator of tacit.sgd")
_multiclass = optional("sklearn.utils.multiclass", "an estimator of tacit.sgd")


class _Estimator(surroundings.RefusesSearch, _base.BaseEstimator):  # type: ignore[name-defined,misc]
    """What classifier and regressor share."""

    def _scaled(self, x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Scale features to [-1, 1] by their public bounds; without bounds, scale each record to length 1 at most."""
        x = np.asarray(x, dtype=np.float64)
        if self.bounds is not None:
            low, high = (np.broadcast_to(np.asarray(b, dtype=np.float64), x.shape[1:]) for b in self.bounds)
            if not (high > low).all():
                raise ValueError("bounds must be (lower, upper), lower below upper, each a number or one per feature")
            return np.asarray(2 * (np.clip(x, low, high) - low) / (high - low) - 1, dtype=np.float32)
        largest = np.abs(x).max(1, keepdims=True).clip(1e-30)
        length = largest * np.linalg.norm(x / largest, axis=1, keepdims=True)
        return np.asarray(x / np.maximum(length, 1.0), dtype=np.float32)

    def _network(self, inputs: int, outputs: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for width in self.hidden:
            layers += [nn.Linear(inputs, width), nn.Tanh()]
            inputs = width
        return nn.Sequential(*layers, nn.Linear(inputs, outputs))

    def _around(self) -> tuple[str, ...]:
        """Refuse a fit inside a search that nobody counts; say what the pipeline around it adds to the guarantee."""
        surroundings.refuse_uncounted_search(self.ledger, type(self).__name__)
        return surroundings.note_pipeline()

    def _read(self, X: Any, y: Any) -> str | None:
        """The fingerprint of the table as it was given, before it is scaled; None without a ledger."""
        return None if self.ledger is None else self.ledger.fingerprint(table_of(X, y))

    def _train(
        self,
        x: npt.NDArray[Any],
        y: npt.NDArray[Any],
        groups: Any,
        outputs: int,
        loss: nn.Module,
        noted: tuple[str, ...],
        read: Any,
    ) -> None:
        if self.random_state is not None:
            seed = np.random.RandomState(self.random_state) if isinstance(self.random_state, int) else self.random_state
            torch.manual_seed(int(seed.randint(2**31)))
        model = self._network(x.shape[1], outputs)
        if not self.hidden:  # zero is the usual start of a convex problem
            for parameter in model[-1].parameters():
                nn.init.zeros_(parameter)
        rate = LINEAR_RATE if self.learning_rate is None else self.learning_rate
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        count = drawn(groups, len(x))
        delta = self.delta if self.delta is not None else min(1e-5, 0.1 / count)
        training = Training(
            model,
            optimizer,
            loss,
            (self._scaled(x), y),
            batch_size=min(self.batch_size or max(1, count // 10), count),
            epochs=self.epochs,
            epsilon=self.epsilon,
            delta=delta,
            clip_norm=self.clip_norm,
            ema=0.95,
            ledger=self.ledger,
            dataset=self.dataset,
            source=read,
            groups=groups,
            max_rows=self.max_rows,
            unit=unit_of(self.unit, owned=groups is not None, ids="Give their ids: fit(X, y, groups=ids)"),
        )
        if self.learning_rate is None and self.hidden:
            noise = training.plan.noise[0] * math.sqrt(sum(p.numel() for p in model.parameters()))
            optimizer.param_groups[0]["lr"] = min(MOST_RATE, RATE * training.divisor / noise)
        for batch in training:
            training.step(batch)
        with training.averaged():
            self.model_ = self._network(x.shape[1], outputs)
            self.model_.load_state_dict(model.state_dict())
        basis = "; ".join([training.privacy.details["basis"], *noted])
        self.privacy_: acc.Privacy = training.privacy.with_details(basis=basis)

    def _outputs(self, x: Any) -> npt.NDArray[np.float64]:
        _validation.check_is_fitted(self)
        with surroundings.messages_without_values():
            x = _validation.validate_data(self, x, reset=False)
        with torch.no_grad():
            return np.asarray(self.model_(torch.from_numpy(self._scaled(x))).double().numpy())


class Classifier(_base.ClassifierMixin, _Estimator):  # type: ignore[name-defined,misc]
    """A private logistic regression, or with ``hidden`` a neural network, trained by DP-SGD.

    It has the scikit-learn API.

    Guarantee:
        ``privacy_`` after the fit, under zero-out of one row; with ``groups`` in :meth:`fit`, of one ``unit`` with all
        its rows. The number of rows (or ids) counts as public. A fit inside a search, cross-validation or ensemble is
        refused unless a ledger counts it.

    Args:
        epsilon: The ε that the fit may cost. Default: 1.
        delta: The δ of the guarantee. Default: 1e-5, or a tenth of one over the number of rows (or ids), if smaller.
        hidden: The widths of hidden layers, with tanh between them. Default: none, a linear model.
        epochs: The number of passes over the data. Default: 20.
        batch_size: The expected number of rows (or ids) in a step. Default: a tenth of all.
        learning_rate: The learning rate of SGD with momentum 0.9. Default: 2; with ``hidden`` layers 0.5, or less where
            the noise is large against a batch.
        clip_norm: The most that one row (or id) may change a sum of gradients, in L2 norm. Default: 1.
        bounds: Public bounds of the features as ``(lower, upper)``, each a number or one per feature; values are
            clipped to them. Default: none; every row is scaled to length 1 at most.
        classes: The class labels, if they are public. Default: the labels in ``y``, which then count as public.
        ledger: The ledger that is charged. Default: none.
        dataset: The name under which the data are registered in the ledger. Required with ``ledger``.
        unit: The name of what is protected. It needs ``groups`` in :meth:`fit`. Default: ``"record"``, and ``"person"``
            with ``groups``.
        max_rows: The most rows that an id contributes to a step. Default: 1.
        random_state: A seed for the initial weights, an int or a numpy ``RandomState``. Noise and batches always come
            from the operating system. Default: torch's own state.

    Example:
        >>> x = np.random.default_rng(0).uniform(-1, 1, (1000, 2))
        >>> private = Classifier(epsilon=2.0, bounds=(-1, 1)).fit(x, x[:, 0] > 0)
        >>> private.privacy_.upper <= 2.0, bool(private.score(x, x[:, 0] > 0) > 0.8)
        (True, True)
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | None = None,
        *,
        hidden: Sequence[int] = (),
        epochs: int = 20,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        clip_norm: float = 1.0,
        bounds: Any = None,
        classes: Any = None,
        ledger: Ledger | None = None,
        dataset: str | None = None,
        unit: str | None = None,
        max_rows: int = 1,
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.clip_norm = clip_norm
        self.bounds = bounds
        self.classes = classes
        self.ledger = ledger
        self.dataset = dataset
        self.unit = unit
        self.max_rows = max_rows
        self.random_state = random_state

    def fit(self, X: Any, y: Any, groups: Any = None) -> Classifier:
        """Train on a table.

        Args:
            X: The features, one row per record: an array or a frame of numbers.
            y: The class of each row.
            groups: Whom each row belongs to, one id per row. Default: every row is its own unit.

        Returns:
            The estimator itself.

        Raises:
            ValueError: If there is only one class, or a label is not among ``classes``.
        """
        noted = self._around()
        given = X, y
        with surroundings.messages_without_values():
            X, y = _validation.validate_data(self, X, y)
        _multiclass.check_classification_targets(y)
        self.classes_ = np.unique(y) if self.classes is None else np.asarray(sorted(self.classes))
        if len(self.classes_) < 2:
            raise ValueError("Classifier can't train when only one class is present.")
        place = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        if (self.classes_[place] != y).any():
            raise ValueError("y has labels that are not among classes. (This message is for the operator only.)")
        loss = nn.CrossEntropyLoss(reduction="none")
        self._train(X, place.astype(np.int64), groups, len(self.classes_), loss, noted, self._read(*given))
        return self

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        """Score the classes.

        Args:
            X: The features, one row per record.

        Returns:
            One score per row and class; with two classes one per row, positive for the second.
        """
        scores = self._outputs(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Predict the probabilities of the classes.

        Args:
            X: The features, one row per record.

        Returns:
            One probability per row and class, in the order of ``classes_``.
        """
        scores = self._outputs(X)
        powers = np.exp(scores - scores.max(1, keepdims=True))
        return np.asarray(powers / powers.sum(1, keepdims=True))

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Predict classes.

        Args:
            X: The features, one row per record.

        Returns:
            The most probable class of each row.
        """
        best = self._outputs(X).argmax(1)
        return np.asarray(self.classes_[best])


class Regressor(_base.RegressorMixin, _Estimator):  # type: ignore[name-defined,misc]
    """A private linear regression, or with ``hidden`` a neural network, trained by DP-SGD.

    It has the scikit-learn API.

    Guarantee:
        ``privacy_`` after the fit, under zero-out of one row; with ``groups`` in :meth:`fit`, of one ``unit`` with all
        its rows. The number of rows (or ids) counts as public. A fit inside a search, cross-validation or ensemble is
        refused unless a ledger counts it.

    Args:
        epsilon: The ε that the fit may cost. Default: 1.
        delta: The δ of the guarantee. Default: 1e-5, or a tenth of one over the number of rows (or ids), if smaller.
        target_bounds: Public bounds of the target as ``(lower, upper)``; it is clipped to them. Default: (-1, 1).
        hidden: The widths of hidden layers, with tanh between them. Default: none, a linear model.
        epochs: The number of passes over the data. Default: 20.
        batch_size: The expected number of rows (or ids) in a step. Default: a tenth of all.
        learning_rate: The learning rate of SGD with momentum 0.9. Default: 0.2.
        clip_norm: The most that one row (or id) may change a sum of gradients, in L2 norm. Default: 1.
        bounds: Public bounds of the features as ``(lower, upper)``, each a number or one per feature; values are
            clipped to them. Default: none; every row is scaled to length 1 at most.
        ledger: The ledger that is charged. Default: none.
        dataset: The name under which the data are registered in the ledger. Required with ``ledger``.
        unit: The name of what is protected. It needs ``groups`` in :meth:`fit`. Default: ``"record"``, and ``"person"``
            with ``groups``.
        max_rows: The most rows that an id contributes to a step. Default: 1.
        random_state: A seed for the initial weights, an int or a numpy ``RandomState``. Noise and batches always come
            from the operating system. Default: torch's own state.

    Example:
        >>> x = np.random.default_rng(0).uniform(-1, 1, (1000, 2))
        >>> private = Regressor(epsilon=2.0, bounds=(-1, 1), target_bounds=(-3, 3)).fit(x, 2 * x[:, 0] - x[:, 1])
        >>> private.privacy_.upper <= 2.0, bool(private.score(x, 2 * x[:, 0] - x[:, 1]) > 0.8)
        (True, True)
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | None = None,
        *,
        target_bounds: Any = (-1.0, 1.0),
        hidden: Sequence[int] = (),
        epochs: int = 20,
        batch_size: int | None = None,
        learning_rate: float = 0.2,
        clip_norm: float = 1.0,
        bounds: Any = None,
        ledger: Ledger | None = None,
        dataset: str | None = None,
        unit: str | None = None,
        max_rows: int = 1,
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.target_bounds = target_bounds
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.clip_norm = clip_norm
        self.bounds = bounds
        self.ledger = ledger
        self.dataset = dataset
        self.unit = unit
        self.max_rows = max_rows
        self.random_state = random_state

    def fit(self, X: Any, y: Any, groups: Any = None) -> Regressor:
        """Train on a table.

        Args:
            X: The features, one row per record: an array or a frame of numbers.
            y: The target of each row, a number.
            groups: Whom each row belongs to, one id per row. Default: every row is its own unit.

        Returns:
            The estimator itself.

        Raises:
            ValueError: If the lower of ``target_bounds`` is not below the upper.
        """
        noted = self._around()
        given = X, y
        with surroundings.messages_without_values():
            X, y = _validation.validate_data(self, X, y, y_numeric=True)
        low, high = self.target_bounds
        if not low < high:
            raise ValueError("target_bounds must be (lower, upper), lower below upper")
        scaled = (2 * (np.clip(np.asarray(y, dtype=np.float64), low, high) - low) / (high - low) - 1).astype(np.float32)
        self._train(X, scaled[:, None], groups, 1, nn.MSELoss(reduction="none"), noted, self._read(*given))
        return self

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """Predict the target.

        Args:
            X: The features, one row per record.

        Returns:
            One prediction per row, within ``target_bounds``.
        """
        low, high = self.target_bounds
        return np.asarray(low + (np.clip(self._outputs(X)[:, 0], -1, 1) + 1) / 2 * (high - low))
