"""The text of a run: what each stage trains on, what is held out of all of them, and the tokens of both."""

from dataclasses import dataclass, replace

from rope_jax.experiment.data import Document
from rope_jax.experiment.recipe.corpus import Corpus, read_corpus
from rope_jax.experiment.recipe.held_out import held_out
from rope_jax.experiment.recipe.settings import RecipeConfig, SourceConfig
from rope_jax.experiment.recipe.vocabulary import Vocabulary
from rope_jax.experiment.training.start import Run

SPLIT_SEED = 0  # the held-out documents are the same for every seed


@dataclass(frozen=True, eq=False)
class Text:
    """Documents to train on, by stage, and to evaluate.

    Attributes:
      corpora: one for every stage.
      documents: held out of all of them.
      vocabulary: the tokens.
      digest: of all that is trained on.
    """

    corpora: tuple[Corpus, ...]
    documents: tuple[Document, ...]
    vocabulary: Vocabulary
    digest: str


def read_text(run: Run) -> Text:
    """Reads every source of every stage once, and holds out the same documents of all.

    A checkpoint brings its own tokenizer, unless the data name another.

    Raises:
      ValueError: a source is missing, or there is too little text.
    """
    config = run.config
    recipes = [stage.data or config.data for stage in config.stages]
    sources = tuple(dict.fromkeys(_weightless(source) for recipe in recipes for source in recipe.sources))
    tokenizer = config.data.tokenizer
    if run.starts_trained and not tokenizer:
        from rope_jax.huggingface.weights.locate import locate

        tokenizer = str(locate(config.model.checkpoint))
    whole = replace(config.data, sources=sources, tokenizer=tokenizer)
    longest = max((*run.lengths, *(stage.length for stage in config.stages)))
    kept, documents = held_out(whole, config.evaluate.tokens, SPLIT_SEED, longest=longest, corpus=read_corpus(whole))
    found = dict(zip(sources, kept.sources, strict=True))

    def corpus(recipe: RecipeConfig) -> Corpus:
        return replace(kept, sources=tuple(found[_weightless(source)] for source in recipe.sources))

    return Text(tuple(map(corpus, recipes)), documents, kept.vocabulary, kept.digest)


def _weightless(source: SourceConfig) -> SourceConfig:
    return replace(source, weight=1.0)
