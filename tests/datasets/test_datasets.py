"""Every known data set has its public schema, and a broken file is an error that names it."""

from __future__ import annotations

import io
import pickle
import shutil
import sys
import tarfile

import numpy as np
import polars as pl
import pytest

from tacit import datasets
from tacit.datasets import BrokenFileError, Dataset, DatasetError, Images, MissingDataError
from tacit.datasets.catalog import CATALOG, File
from tacit.datasets.images import _cifar_archive, _cifar_npz, parse_cifar_binary, parse_cifar_python, parse_idx
from tacit.datasets.tables import assemble, parse_adult
from tacit.schema import Categorical, Numeric, Schema, Text

NAMES = [
    "labsup",
    "mnist",
    "fashion_mnist",
    "cifar10",
    "adult",
    "pums_fulton",
    "pums_california",
    "acs2018",
    "brazil2010",
    "census1980",
    "sst2",
    "mr",
    "trec",
    "sms_spam",
    "ag_news",
]


def test_the_catalogue_has_the_promised_sets():
    assert list(CATALOG) == NAMES
    assert all(callable(getattr(datasets, name)) for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_set_has_a_public_schema_with_a_target_and_its_unit(name):
    schema = datasets.schema(name)
    assert schema.name == name
    assert schema.target is not None
    assert schema.unit.name == CATALOG[name].unit
    assert CATALOG[name].licence
    assert CATALOG[name].source
    assert Schema.parse_toml(schema.to_toml()) == schema


def test_the_embedded_set_needs_no_folder_and_no_network(empty_home):
    people = datasets.labsup()
    assert people.rows == 31_857
    assert people.unit == "person"
    encoded, _ = people.encode()
    assert encoded.features.shape == (31_857, 10)
    assert set(np.unique(encoded.target)) == {0, 1}
    # Columns that are consequences of the target are no features.
    assert not {"weeks", "hours", "labinc", "faminc"} & set(encoded.feature_names)


def test_the_embedded_set_is_read_without_importing_pandas():
    import subprocess

    code = "import sys; from tacit import datasets; datasets.labsup().encode(); print('pandas' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


@pytest.mark.data
@pytest.mark.parametrize("name", [name for name in NAMES if name != "cifar10"])
def test_the_real_files_have_their_published_rows_and_fit_their_schema(name, data_folder):
    dataset = datasets.load(name, data_folder, download=False)
    assert isinstance(dataset, Dataset)
    assert dataset.rows == CATALOG[name].total
    if any(isinstance(column, Text) for column in dataset.schema.columns):
        for split in dataset.splits.values():
            assert set(split["label"]) == set(dataset.classes)
            assert all(split["text"].str.len_chars() > 0)
        return
    split = "test" if "test" in dataset.splits else "all"
    encoded, operator_view = dataset.encode(split, dtype=np.float32)
    assert np.isfinite(encoded.features).all()
    assert np.abs(encoded.features).max() <= 1
    assert encoded.features.shape == (len(dataset[split]), len(encoded.feature_names))
    # Bounds from code books should hold nearly all rows; a schema in the wrong unit would clip most of them.
    for column, count in operator_view.clipped.items():
        assert count < 0.05 * len(dataset[split]), column
    for column, count in operator_view.unknown.items():
        assert count < 0.07 * len(dataset[split]), column


@pytest.mark.data
def test_the_census_samples_have_the_derived_columns(data_folder):
    frame = datasets.pums_fulton(data_folder).train
    assert frame["collegedegree"].to_list() == (frame["educ"] >= 13).cast(pl.Int8).to_list()
    assert frame["blackfemale"].sum() == frame.filter((pl.col("black") == 1) & (pl.col("sex") == 1)).height
    assert "blackfemale" in datasets.pums_california(data_folder).train.columns


@pytest.mark.data
def test_pictures_have_their_classes_in_order(data_folder):
    clothes = datasets.fashion_mnist(data_folder)
    assert isinstance(clothes.train, Images)
    assert clothes.train.images.shape == (60_000, 28, 28)
    assert np.bincount(clothes.train.labels).tolist() == [6000] * 10
    assert clothes.classes[9] == "Ankle boot"
    assert clothes.train.labels[0] == 9  # the first picture of the published file is an ankle boot
    encoded, _ = clothes.encode("test", dtype=np.float32)
    np.testing.assert_array_equal(encoded.target, clothes.test.labels)


@pytest.mark.data
def test_the_uci_files_of_adult_give_the_same_rows_as_the_parquet_file(data_folder, tmp_path):
    for split, frame in datasets.adult(data_folder).splits.items():
        end = "." if split == "test" else ""
        lines = [", ".join(map(str, row)) + end for row in frame.iter_rows()]
        head = "|1x3 Cross validator\n" if split == "test" else ""
        parsed = parse_adult((head + "\n".join(lines) + "\n\n").encode(), tmp_path / "adult")
        assert parsed.equals(frame.cast({name: parsed.schema[name] for name in parsed.columns}))


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "relative"),
    [
        ("mnist", "mnist/t10k-labels-idx1-ubyte.gz"),
        ("adult", "tables/adult_48842.parquet"),
        ("pums_fulton", "tables/pums2000_fulton_ga.parquet"),
        ("sst2", "text/sst2/dev.tsv"),
        ("mr", "text/mr/rt-polarity.neg"),
        ("trec", "text/trec/TREC.test"),
        ("sms_spam", "text/sms-spam/sms.tsv"),
        ("ag_news", "text/ag-news-test/test.csv"),
    ],
)
@pytest.mark.parametrize("damage", ["truncated", "one byte", "empty"])
def test_a_broken_file_is_an_error_that_names_it(name, relative, damage, data_folder, tmp_path, monkeypatch):
    monkeypatch.delenv("TACIT_DATA")
    files = next(way for way in CATALOG[name].ways if any(file.path == relative for file in way))
    for file in files:
        (tmp_path / file.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(data_folder / file.path, tmp_path / file.path)
    broken = tmp_path / relative
    content = bytearray(broken.read_bytes())
    if damage == "one byte":
        content[len(content) // 2] ^= 1
    broken.write_bytes({"truncated": content[: len(content) // 2], "one byte": content, "empty": b""}[damage])
    with pytest.raises(BrokenFileError, match=relative):
        datasets.load(name, tmp_path, download=False)


def test_the_embedded_file_is_checked_too(tmp_path, empty_home):
    (tmp_path / "labsup.csv.bz2").write_bytes(b"BZh9 not")
    with pytest.raises(BrokenFileError, match=r"labsup\.csv\.bz2"):
        datasets.labsup(tmp_path)


@pytest.mark.parametrize("name", [name for name in NAMES if CATALOG[name].package is None])
def test_an_absent_set_says_where_to_get_it_and_where_to_put_it(name, empty_home):
    with pytest.raises(MissingDataError) as caught:
        datasets.load(name, empty_home / "mine", download=False)
    message = str(caught.value)
    assert str(empty_home / "mine") in message
    assert str(empty_home / "cache" / "tacit") in message
    assert "http" in message


def test_a_set_without_an_address_is_not_asked_for_on_the_network(empty_home):
    with pytest.raises(MissingDataError, match=r"Where to get it: made from .*Where to put it: .*brazil2010_350696"):
        datasets.brazil2010()


@pytest.mark.data
def test_the_named_folder_comes_before_the_environment_and_the_cache(data_folder, empty_home, monkeypatch):
    wanted = "text/sms-spam/sms.tsv"
    for folder in ("named", "environment", "cache/tacit"):
        (empty_home / folder / wanted).parent.mkdir(parents=True)
        shutil.copyfile(data_folder / wanted, empty_home / folder / wanted)
    monkeypatch.setenv("TACIT_DATA", str(empty_home / "environment"))
    assert datasets.sms_spam(empty_home / "named").files == (empty_home / "named" / wanted,)
    assert datasets.sms_spam().files == (empty_home / "environment" / wanted,)
    (empty_home / "environment" / wanted).unlink()
    assert datasets.sms_spam(download=False).files == (empty_home / "cache" / "tacit" / wanted,)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(DatasetError, match=r"no data set 'minst'; the known ones are labsup, mnist"):
        datasets.load("minst")
    with pytest.raises(KeyError, match="labsup has no split 'test'; it has all"):
        datasets.labsup().test


def test_a_table_with_other_rows_or_columns_is_refused(tmp_path):
    frame = datasets.labsup().train
    with pytest.raises(BrokenFileError, match=r"31856 rows where 31857 are known"):
        assemble(CATALOG["labsup"], {"all": frame.head(31_856)}, (tmp_path / "x",))
    with pytest.raises(BrokenFileError, match="column 'worked' is missing"):
        assemble(CATALOG["labsup"], {"all": frame.drop("worked")}, (tmp_path / "x",))


@pytest.mark.parametrize(
    "content",
    [b"", b"\0\0", b"\1\0\x08\1\0\0\0\1x", b"\0\0\x0d\1\0\0\0\1x", b"\0\0\x08\3\0\0", b"\0\0\x08\1\0\0\0\5xyz"],
)
def test_what_is_no_idx_file_is_refused_by_name(content, tmp_path):
    with pytest.raises(BrokenFileError, match="digits"):
        parse_idx(content, tmp_path / "digits")


@pytest.fixture
def pictures():
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8), np.arange(20) % 10


def _records(images):
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def test_both_published_forms_of_cifar_give_the_same_pictures(pictures, tmp_path):
    images, labels = pictures
    binary = b"".join(bytes([label]) + row.tobytes() for label, row in zip(labels, _records(images), strict=True))
    batch = {
        b"data": _records(images),
        b"labels": labels.tolist(),
        b"batch_label": b"one",
        b"filenames": [b"a.png"] * 20,
    }
    for parsed in (
        parse_cifar_binary(binary, tmp_path),
        *(parse_cifar_python(pickle.dumps(batch, protocol=protocol), tmp_path) for protocol in (2, 4)),
    ):
        np.testing.assert_array_equal(parsed[0], images)
        np.testing.assert_array_equal(parsed[1], labels)


def test_a_python_batch_as_numpy_1_wrote_it_is_read(pictures, tmp_path):
    images, labels = pictures
    old = pickle.dumps({b"data": _records(images), b"labels": labels.tolist()}, protocol=2)
    old = old.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    np.testing.assert_array_equal(parse_cifar_python(old, tmp_path)[0], images)


class Bomb:
    def __reduce__(self):
        return (__import__("os").system, ("exit 0",))


@pytest.mark.parametrize("payload", [Bomb(), {b"data": Bomb()}, {b"data": np.array([Bomb()], dtype=object)}, [], 3])
def test_a_pickle_can_make_arrays_and_nothing_else(payload, tmp_path):
    with pytest.raises(BrokenFileError, match="a batch cannot be read"):
        parse_cifar_python(pickle.dumps(payload), tmp_path / "batch")


def _archive(folder, ending, make):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as bundle:
        for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
            content = make()
            info = tarfile.TarInfo(f"{folder}/{name}{ending}")
            info.size = len(content)
            bundle.addfile(info, io.BytesIO(content))
    return out.getvalue()


def test_the_archives_of_cifar_are_read_whole_or_refused(pictures, tmp_path):
    images, labels = pictures
    python = _archive(
        "cifar-10-batches-py", "", lambda: pickle.dumps({"data": _records(images), "labels": labels.tolist()})
    )
    splits = _cifar_archive(python, tmp_path / "cifar-10-python.tar.gz")
    assert {name: len(split) for name, split in splits.items()} == {"train": 100, "test": 20}
    np.testing.assert_array_equal(splits["test"].images, images)
    binary = _archive("cifar-10-batches-bin", ".bin", lambda: (b"\1" + bytes(3072)) * 20)
    assert len(_cifar_archive(binary, tmp_path / "cifar-10-binary.tar.gz")["train"]) == 100
    for content in (python, python[: len(python) // 2], b""):
        with pytest.raises(BrokenFileError, match=r"cifar-10-binary\.tar\.gz"):
            _cifar_archive(content, tmp_path / "cifar-10-binary.tar.gz")
    with pytest.raises(BrokenFileError, match="truncated"):
        parse_cifar_binary(bytes(3072), tmp_path / "b")


def test_half_of_cifar_is_refused(pictures, tmp_path):
    images, labels = pictures
    np.savez(tmp_path / "cifar10.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    with pytest.raises(BrokenFileError, match=r"cifar10\.npz: cifar10 has 20 rows where 50000 are known"):
        datasets.cifar10(tmp_path)
    content = (tmp_path / "cifar10.npz").read_bytes()
    assert len(_cifar_npz(content, tmp_path / "x")["train"]) == 20
    with pytest.raises(BrokenFileError, match="not a readable CIFAR-10 archive"):
        _cifar_npz(content[:5000], tmp_path / "x")
    np.savez(tmp_path / "cifar10.npz", x_train=images, y_train=labels + 5, x_test=images, y_test=labels)
    with pytest.raises(BrokenFileError, match="not one of the ten classes"):
        datasets.cifar10(tmp_path)


def test_picture_schemas_know_the_shape_and_the_range_of_a_byte():
    for name, shape in (("mnist", (28, 28)), ("fashion_mnist", (28, 28)), ("cifar10", (32, 32, 3))):
        schema = datasets.schema(name)
        image, label = schema["image"], schema["label"]
        assert isinstance(image, Numeric)
        assert isinstance(label, Categorical)
        assert (image.lower, image.upper, image.shape) == (0, 255, shape)
        assert len(label.categories) == 10
        assert schema.unit.name == "image"


def test_files_without_an_address_tell_to_be_replaced(tmp_path):
    from tacit.datasets.locate import read_checked

    with pytest.raises(BrokenFileError, match=r"cannot read .*gone: No such file"):
        read_checked(File("gone"), tmp_path / "gone")
