"""The TOML tables ``[target]`` and ``[[source]]``, and how their inputs become features."""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt

from steelyard.tasks import Kind


class DataWarning(UserWarning):
    """Something in the data that is legal, but seldom meant: it is said once and does not stop the run."""


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str | int) and not isinstance(value, bool) else value


def _as_name(value: object) -> object:
    """A column may be given by its number (CoNLL files have no header)."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Column = Annotated[str, BeforeValidator(_as_name)]
Columns = Annotated[list[Column], BeforeValidator(_as_list)]


class DataTable(BaseModel):
    """What the tables of the target and of a source have in common.

    Attributes:
        name: The name of the task.
        train: A csv, tsv, jsonl, parquet, CoNLL or CoNLL-U file, a folder of images, ``hub:NAME`` or
            ``suite:NAME/TASK@ROWS``. Relative paths start at the folder of the TOML file.
        dev: Rows to choose the best model on; by default a fraction of ``train``.
        dev_fraction: That fraction; 0 keeps every row in train.
        test: Rows for the final figures; optional.
        text: The column, or columns, that hold the text.
        label: The column that holds the label. Several columns are one multi-label task if they hold 0 and 1,
            and a regression with several outputs if they hold numbers.
        kind: What is predicted; by default it is read from the labels.
        classes: The label space; by default it is read from ``train``.
        features: The numeric and categorical columns of a table.
        categorical: Those of ``features`` that are categories although they look like numbers.
        image: The column that holds the paths of images.
        token: The column of tokens of a CoNLL file, or of lists of tokens, for tagging.
        tags: The column of tags; another name for ``label`` in tagging.
        columns: Names for the columns of a CoNLL file, which has no header.
        group: A column whose values are never split over train and dev: a document, a patient, a user.
        rare: What to do with a class that occurs once in train.
        metric: The metric of the task; by default its kind's own.
        head: The head of the task; by default its kind's own.
        format: The reader, when the file's ending does not say it.
        delimiter: What separates the cells of a csv file.
        quote: What encloses cells; empty if quotes are plain text in this file.
    """

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1)
    train: str = Field(min_length=1)
    dev: str | None = None
    dev_fraction: float = Field(0.1, ge=0, lt=1)
    test: str | None = None
    text: Columns | None = None
    label: Columns | None = None
    kind: Kind | None = None
    classes: Columns | None = None
    features: Columns | None = None
    categorical: Columns = []
    image: Column | None = None
    token: Column | None = None
    tags: Column | None = None
    columns: list[str] | None = None
    group: Column | None = None
    rare: Literal["error", "drop", "keep"] = "error"
    metric: str | None = None
    head: str | None = None
    format: str | None = None
    delimiter: str | None = Field(None, min_length=1, max_length=1)
    quote: str = Field('"', max_length=1)

    @property
    def labels(self) -> list[str]:
        """The label columns, however they were given."""
        return self.label or ([self.tags] if self.tags else [])


class TargetData(DataTable):
    """The table ``[target]``: the task that matters."""


class SourceData(DataTable):
    """A table ``[[source]]``: a task to learn from."""


class FeatureOptions(BaseModel):
    """How text and images become features.

    Attributes:
        tokenizer: A Hugging Face tokenizer (a name, a folder or ``suite:minilm``): text becomes sub-words.
            Without one it becomes lower-cased words with a vocabulary from train; an encoder that is not built
            in brings its own.
        lower: Whether words are lower-cased.
        min_count: Words that occur less often in train are unknown.
        max_words: The size of the vocabulary at most.
        max_length: Longer texts are cut; token tagging by words is never cut.
        vectors: A GloVe text file, or ``suite:glove``: every word of train that it knows enters the vocabulary,
            whatever its count.
        image_size: Images are resized to this square; by default the size of the first.
        channels: 1 reads images as grey, 3 as colour.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tokenizer: str | None = None
    lower: bool = True
    min_count: PositiveInt = 2
    max_words: PositiveInt = 50_000
    max_length: PositiveInt = 256
    vectors: str | None = None
    image_size: PositiveInt | None = None
    channels: Literal[1, 3] = 3
