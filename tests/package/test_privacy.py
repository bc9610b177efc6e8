"""One privacy type everywhere: whatever made it, ``.privacy`` says the same things in the same words."""

import html
import pickle
import re

import numpy as np
import pytest

from tacit import accounting as acc

DELTA = 1e-5


def rows(count=60):
    x = np.linspace(-1, 1, 2 * count).reshape(count, 2)
    return x, (x[:, 0] > 0).astype(int)


def training(**options):
    import torch

    from tacit.sgd import Training

    x, y = (torch.from_numpy(part) for part in rows())
    model = torch.nn.Linear(2, 2)
    settings = {"batch_size": 6, "steps": 3, "noise_multiplier": 1.0, "delta": DELTA} | options
    return Training(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.nn.CrossEntropyLoss(reduction="none"),
        (x.float(), y),
        **settings,
    )


def fitted():
    import torch

    from tacit.sgd import fit

    x, y = (torch.from_numpy(part) for part in rows())
    model = torch.nn.Linear(2, 2)
    optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.CrossEntropyLoss(reduction="none")
    return fit(model, optimizer, loss, (x.float(), y), epsilon=2.0, delta=DELTA, batch_size=6, steps=3).privacy


def classifier():
    from tacit.sgd import Classifier

    return Classifier(2.0, delta=DELTA, epochs=1).fit(*rows()).privacy_


def regressor():
    from tacit.sgd import Regressor

    x, _ = rows()
    return Regressor(2.0, delta=DELTA, epochs=1, target_bounds=(-1, 1)).fit(x, x[:, 0]).privacy_


def linear():
    from tacit.linear_model import LinearRegression

    x, _ = rows()
    return LinearRegression(1.0, bounds=(-1, 1), target_bounds=(-1, 1)).fit(x, x[:, 0]).privacy_


def logistic(method):
    from tacit.linear_model import LogisticRegression

    options = {"delta": 0.0} if method == "objective-perturbation" else {}
    made = LogisticRegression(1.0, bounds=(-1, 1), classes=[0, 1], method=method, **options)
    return made.fit(*rows()).privacy_


def answers():
    from tacit.pate import GNMax

    return GNMax(vote_noise=40, classes=2).answer([[90, 10]] * 9, queries=9).privacy


def search():
    from tacit.tuning import PrivateSearch, Score

    def train(candidate, noise):
        return candidate["which"]

    return PrivateSearch(
        {"which": ["a", "b"]},
        train,
        Score(lambda model: 1.0, sensitivity=1.0, noise=50.0),
        epsilon=1.0,
        delta=DELTA,
        mechanism=lambda candidate, noise: acc.Gaussian(noise),
        runs=4,
    )


def engine():
    import torch

    from tacit.opacus import PrivacyEngine

    made = PrivacyEngine()
    model = torch.nn.Linear(2, 2)
    data = torch.utils.data.TensorDataset(*(torch.from_numpy(part) for part in rows()))
    model, optimizer, loader = made.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(data, batch_size=10),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x.float()), y).backward()
        optimizer.step()
    assert made.privacy(DELTA).claim == made.get_epsilon(DELTA)
    return made.privacy(DELTA)


def trainer():
    """What the ``Trainer`` of transformers and Lightning's callback carry."""
    import torch

    from tacit.integrations.run import PrivateRun
    from tacit.sgd.hooked.draws import PrivateBatches
    from tacit.sgd.training.sampling import Poisson

    run = PrivateRun(noise_multiplier=1.0, target_epsilon=None, target_delta=DELTA, max_grad_norm=1.0)
    model = torch.nn.Linear(2, 2)
    run.batches = PrivateBatches(Poisson(60, 6), None, 60)
    run.take_key("stamp")
    run.begin(model, torch.optim.SGD(model.parameters(), lr=0.1), 10)
    found = run.privacy
    run.leave()
    run.key.destroy()
    return found


MAKERS = {
    "training": lambda: training().privacy,
    "training, size given": lambda: training(size=80).privacy,
    "fit": fitted,
    "sgd classifier": classifier,
    "sgd regressor": regressor,
    "linear regression": linear,
    "logistic regression": lambda: logistic("gradient-descent"),
    "logistic regression, pure": lambda: logistic("objective-perturbation"),
    "logistic regression by DP-SGD": lambda: logistic("dp-sgd"),
    "votes": answers,
    "search": lambda: search().privacy,
    "found": lambda: search().run().privacy,
    "engine": engine,
    "trainer": trainer,
}
#: Where the number of units was counted: stated for neighbours that have it in common.
COUNTED = ("training", "fit", "sgd", "logistic regression by DP-SGD", "engine", "trainer")


@pytest.fixture(scope="module", params=MAKERS)
def made(request, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        return request.param, MAKERS[request.param]()


def test_it_is_one_type_with_the_same_fields(made):
    _, privacy = made
    assert type(privacy) is acc.Privacy
    assert type(privacy.interval) is acc.Bound
    assert isinstance(privacy.mechanism, acc.Mechanism)
    assert 0 <= privacy.lower <= privacy.upper == privacy.claim == privacy.interval.upper
    assert (privacy.delta, privacy.unit) == (privacy.interval.given, privacy.mechanism.unit)
    assert privacy.adjacency in privacy.mechanism.adjacencies()


def test_the_claim_is_the_price_of_the_mechanism_it_names(made):
    _, privacy = made
    if privacy.delta > 0:
        assert privacy.claim >= acc.epsilon(privacy.mechanism, privacy.delta, adjacency=privacy.adjacency).lower
    assert privacy.at(1e-7).claim >= privacy.at(1e-6).claim
    assert privacy.at(1e-6).details == privacy.details


def test_a_counted_number_is_common_to_the_neighbours(made):
    name, privacy = made
    counted = name.startswith(COUNTED) and "given" not in name
    assert (privacy.adjacency == "zero-out") == counted
    assert ("treated as public" in repr(privacy)) == counted


def test_text_and_table_say_everything_and_escape_it(made):
    _, privacy = made
    text = repr(privacy)
    assert text.startswith(repr(privacy.interval))
    told = html.unescape(re.sub("<[^>]*>", "\n", privacy._repr_html_()))
    for value in privacy.details.values():
        if value not in (None, "", ()):
            for part in value if isinstance(value, tuple) else [value]:
                shown = f"{part:,}" if isinstance(part, int) else str(part)
                assert shown in text
                assert shown in told
    assert privacy.interval.terms in told
    assert repr(privacy.mechanism) in told
    hostile = privacy.with_details(note="<script>")._repr_html_()
    assert "<script>" not in hostile
    assert "&lt;script&gt;" in hostile


def test_it_can_be_kept(made):
    _, privacy = made
    assert pickle.loads(pickle.dumps(privacy)) == privacy
    assert privacy.to_dict()["interval"]["upper"] == privacy.claim
