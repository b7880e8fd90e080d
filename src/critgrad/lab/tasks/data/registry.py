"""Every data set: its files, hashes, addresses, licence and reader."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from . import bpe, convex, dialogue, images, text
from .dataset import Parts
from .files import PACKAGE, File, Open
from .noise import noise
from .pycode import FILES as PYCODE
from .pycode import RELEASE, pycode

# The published files: path, hash of the published form, hash of the content, address, origin. The hash of the content was taken
# from the unpacked file. Where an address gives the content in another packing, the content's hash is what it is held to; where
# only an archive's hash is known, nothing but that archive is accepted.
_KNOWN: dict[str, dict[str, Any]] = json.loads((PACKAGE / "published.json").read_text(encoding="utf-8"))


def files(name: str) -> tuple[File, ...]:
    """The files of that name, in the order in which their reader wants them."""
    return tuple(File(**file, origin=_KNOWN[name]["origin"]) for file in _KNOWN[name]["files"])


@dataclass(frozen=True)
class DataSource:
    """One form in which a data set may lie here: its files, what part they are, and how to read them."""

    files: tuple[File, ...]
    read: Callable[[Open], Parts]
    state: str


@dataclass(frozen=True)
class Record:
    """A data set. Of several sources the first complete one is read.

    ``version`` belongs to the reader: raise it with every change of what is read, and prepared files of the old
    reader are no longer used. ``variant`` makes ``<name>@<value>`` of a set that is computed.
    """

    name: str
    summary: str
    licence: str
    citation: str
    sources: tuple[DataSource, ...]
    variant: Callable[[float], Parts] | None = None
    version: int = 1
    sha256: str | None = None  # what every reading must give, and every prepared file hold

    @property
    def files(self) -> tuple[File, ...]:
        """The files of all sources."""
        return tuple(file for source in self.sources for file in source.files)

    @property
    def state(self) -> str:
        """Whole, part or synthetic, by the preferred source."""
        return self.sources[0].state


RECORDS = (
    Record(
        "digits",
        "1,797 handwritten digits of 8 x 8 pixels, in the package",
        "CC BY 4.0",
        "E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI 1998, doi 10.24432/C50P49",
        (DataSource(files("digits"), images.digits, "whole"),),
    ),
    Record(
        "mnist",
        "70,000 handwritten digits of 28 x 28 pixels",
        "usually given as CC BY-SA 3.0",
        "Y. LeCun, L. Bottou, Y. Bengio and P. Haffner, Gradient-based learning applied to document recognition, 1998",
        (DataSource(files("mnist"), images.mnist, "whole"),),
    ),
    Record(
        "cifar10",
        "60,000 colour images of 32 x 32 pixels in 10 classes",
        "none given; the authors ask to be cited",
        "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        (
            DataSource(files("cifar10-mosaics"), images.cifar_mosaics("cifar10", 10, "the original"), "whole"),
            DataSource(files("cifar10-archive"), images.cifar10_archive, "whole"),
        ),
    ),
    Record(
        "cifar100",
        "60,000 colour images of 32 x 32 pixels in 100 classes",
        "none given; the authors ask to be cited",
        "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        (
            DataSource(files("cifar100-mosaics"), images.cifar_mosaics("cifar100", 100, "shuffled"), "whole"),
            DataSource(files("cifar100-archive"), images.cifar100_archive, "whole"),
        ),
    ),
    Record(
        "covtype",
        "5,000 of 581,012 forest plots with 54 features, 7 kinds of cover",
        "CC BY 4.0",
        "J. A. Blackard and D. J. Dean, Comparative accuracies of neural networks and discriminant analysis, 1999",
        (
            DataSource(files("covtype-npz"), convex.covtype_npz, "whole"),
            DataSource(files("covtype-csv"), convex.covtype_csv, "whole"),
        ),
    ),
    Record(
        "rcv1",
        "1,747 news stories of RCV1-v2 as TF-IDF, corporate/industrial or not",
        "Reuters' text, research use",
        "D. D. Lewis, Y. Yang, T. G. Rose and F. Li, RCV1: A New Benchmark Collection, JMLR 2004",
        (DataSource(files("rcv1"), convex.rcv1, "part"),),
    ),
    Record(
        "reuters",
        "5,000 news stories of Reuters-21578 as TF-IDF, earnings or not",
        "research use",
        "Reuters-21578, Distribution 1.0 (D. D. Lewis)",
        (DataSource(files("reuters"), convex.reuters, "whole"),),
    ),
    Record(
        "noise",
        "500 computed rows in two classes, a share of the labels redrawn: noise (none), noise@0.1 to noise@1",
        "computed, none",
        "scikit-learn's make_classification with the paper's parameters",
        (DataSource((), lambda read: noise(), "synthetic"),),
        variant=noise,
    ),
    Record(
        "ptb",
        "Penn Treebank words, 10,000 types",
        "LDC's text, research use",
        "M. Marcus et al., Building a large annotated corpus of English, 1993; T. Mikolov et al., 2010",
        (DataSource(files("ptb"), text.lm("ptb", "ptb.{}.txt"), "whole"),),
    ),
    Record(
        "wikitext2",
        "Wikipedia articles in words, 33,278 types",
        "CC BY-SA 3.0",
        "S. Merity, C. Xiong, J. Bradbury and R. Socher, Pointer Sentinel Mixture Models, 2016",
        (DataSource(files("wikitext2"), text.lm("wikitext2", "wiki.{}.tokens"), "whole"),),
    ),
    Record(
        "snli",
        "pairs of sentences: entailment, neutral or contradiction",
        "CC BY-SA 4.0",
        "S. R. Bowman, G. Angeli, C. Potts and C. D. Manning, A large annotated corpus for learning NLI, 2015",
        (
            DataSource(files("snli-tables"), text.snli_tsv, "part"),
            DataSource(files("snli-archive"), text.snli_archive, "whole"),
        ),
    ),
    Record(
        "multiwoz",
        "tourists' dialogues with a desk, answers to be generated",
        "MIT",
        "P. Budzianowski et al., MultiWOZ, 2018; M. Eric et al., MultiWOZ 2.1, 2019",
        (DataSource(files("multiwoz"), dialogue.multiwoz, "part"),),
    ),
    Record(
        "sgd",
        "Schema-Guided Dialogue, answers to be generated",
        "CC BY-SA 4.0",
        "A. Rastogi et al., Towards Scalable Multi-domain Conversational Agents, 2020",
        (DataSource(files("sgd"), dialogue.sgd, "part"),),
    ),
    Record(
        "multiwoz-roberta",
        "the dialogues of multiwoz in RoBERTa's tokens, for a causal language model",
        "MIT",
        "as multiwoz; Y. Liu et al., RoBERTa, 2019",
        (DataSource(files("multiwoz") + files("roberta"), bpe.multiwoz_roberta, "part"),),
    ),
    Record(
        "pycode",
        f"the standard library of Python {RELEASE} without tests, in 2,048 pieces learned from it",
        "PSF-2.0",
        f"Python Software Foundation, Python {RELEASE}, 2023",
        (DataSource(PYCODE, pycode, "whole"),),
        sha256="245e59a41509d17dd0c0d175ce96e4d8c62f034997ac0c2fd79769329f5e90c3",
    ),
)

DATASETS: Mapping[str, Record] = MappingProxyType({record.name: record for record in RECORDS})
