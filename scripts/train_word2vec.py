"""Train word vectors by skip-gram with negative sampling on generated text, each rank on its part of it.

mpirun -np 2 python scripts/train_word2vec.py

Every word belongs to a topic, and half of the words of a passage are of the same one: this is what the vectors have to
find out.  A step needs few of the tables' rows, so that its gradients are sparse (tf.IndexedSlices).
Mikolov et al., "Distributed Representations of Words and Phrases and their Compositionality" (2013), section 2.2.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported, or every rank tells of its CPU
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import keras
import numpy as np
import tensorflow as tf

import fusionctl.tensorflow as fusion

PASSAGE = 50
"""Words in a row that keep to a topic."""

NEGATIVES = 5
"""Words that a pair is told from, as Mikolov et al. count them."""

NEIGHBOURS = 5
"""Nearest words that are looked at for each word."""


def main() -> None:
    """Train, and print how the loss fell and how often the nearest neighbours of a word are of its topic."""
    options = parse_options()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    fusion.init()
    keras.utils.set_random_seed(fusion.rank())  # the broadcast makes the vectors equal

    topics = np.random.default_rng(0).integers(options.topics, size=options.vocabulary)  # the same on all ranks
    frequencies = 1 / np.arange(1.0, options.vocabulary + 1)  # Zipf's law: word 0 is the most frequent one
    random = np.random.default_rng([1, fusion.rank()])
    pairs = pairs_of(make_text(topics, frequencies, options.words // PASSAGE, random), options.window)
    random.shuffle(pairs)
    table = keras.layers.Embedding(options.vocabulary, options.dimensions)
    losses, rows = train(table, pairs, frequencies**0.75, options, random)

    tenth = -(-len(losses) // 10)
    start, end = (fusion.allreduce(tf.reduce_mean(part)) for part in (losses[:tenth], losses[-tenth:]))
    if fusion.rank() == 0:
        share, chance = agreement(table.embeddings.numpy(), topics, options.evaluated)
        print(f"{len(losses)} steps of {options.batch_size} pairs on each of {fusion.size()} ranks")
        print(f"a step's gradients have {rows / len(losses):.0f} of the tables' {2 * options.vocabulary} rows")
        print(f"loss {float(start):.3f} at the start, {float(end):.3f} at the end")
        print(f"neighbours of the same topic: {share:.3f}, by chance {chance:.3f}: {share / chance:.1f} times as many")


def parse_options() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description="Train word vectors on generated text.")
    parser.add_argument("--words", type=int, default=100_000, help="words of text per rank")
    parser.add_argument("--vocabulary", type=int, default=5000, help="number of different words")
    parser.add_argument("--topics", type=int, default=50, help="number of topics")
    parser.add_argument("--window", type=int, default=3, help="words on each side that are a word's context")
    parser.add_argument("--batch-size", type=int, default=256, help="pairs of word and context per rank and step")
    parser.add_argument("--sampled", type=int, default=64, help="words per rank and step that its pairs are told from")
    parser.add_argument("--dimensions", type=int, default=64, help="length of a vector")
    parser.add_argument("--lr", type=float, default=0.3, help="learning rate of Adagrad")
    parser.add_argument("--evaluated", type=int, default=1000, help="number of most frequent words to be evaluated")
    return parser.parse_args()


def make_text(topics: np.ndarray, frequencies: np.ndarray, passages: int, random: np.random.Generator) -> np.ndarray:
    """Passages of words by their frequencies, half of them of one topic; int32 of shape (passages, PASSAGE)."""
    words = np.argsort(topics, kind="stable")
    shares = np.cumsum(frequencies[words])  # a topic is an interval of these
    ends = np.append(0, shares[np.cumsum(np.bincount(topics)) - 1])
    chosen = topics[draw(frequencies, passages, random)]
    everywhere = random.random((PASSAGE, passages)) < 0.5
    low, high = np.where(everywhere, 0, ends[chosen]), np.where(everywhere, ends[-1], ends[chosen + 1])
    return words[np.searchsorted(shares, random.uniform(low, high).T)].astype(np.int32)


def draw(frequencies: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
    """Words by their frequencies, int32 of shape (count,)."""
    shares = np.cumsum(frequencies)
    return np.searchsorted(shares, random.uniform(0, shares[-1], count)).astype(np.int32)


def pairs_of(text: np.ndarray, window: int) -> np.ndarray:
    """Each word with each one in its window, int32 of shape (pairs, 2)."""
    pairs = [(text[:, :-distance], text[:, distance:]) for distance in range(1, window + 1)]
    both = [(a.ravel(), b.ravel()) for first, second in pairs for a, b in ((first, second), (second, first))]
    return np.concatenate([np.stack(pair, axis=1) for pair in both])


def train(
    table: keras.layers.Embedding,
    pairs: np.ndarray,
    frequencies: np.ndarray,
    options: argparse.Namespace,
    random: np.random.Generator,
) -> tuple[list[tf.Tensor], int]:
    """The losses of all steps over the pairs once, and the number of rows that the steps' gradients have together."""
    contexts = keras.layers.Embedding(options.vocabulary, options.dimensions, embeddings_initializer="zeros")
    for embedding in (table, contexts):
        embedding.build()
    variables = [table.embeddings, contexts.embeddings]
    optimizer = keras.optimizers.Adagrad(options.lr)
    optimizer.build(variables)
    fusion.broadcast_variables([*variables, *optimizer.variables], root_rank=0)

    @tf.function  # type: ignore[untyped-decorator]
    def step(batch: tf.Tensor, sampled: tf.Tensor) -> tf.Tensor:
        with fusion.DistributedGradientTape(tf.GradientTape()) as tape:
            vectors = table(batch[:, 0])
            positive = tf.reduce_sum(vectors * contexts(batch[:, 1]), axis=1)
            negative = tf.matmul(vectors, contexts(sampled), transpose_b=True)  # one sample for all pairs of the step
            loss = tf.reduce_sum(tf.nn.softplus(-positive))
            loss += NEGATIVES * tf.reduce_sum(tf.reduce_mean(tf.nn.softplus(negative), axis=1))
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss / options.batch_size

    losses, rows = [], 0
    for batch in np.split(pairs, range(options.batch_size, len(pairs), options.batch_size))[:-1]:
        sampled = draw(frequencies, options.sampled, random)
        losses.append(step(batch, sampled))
        rows += len(np.unique(batch[:, 0])) + len(np.unique(np.append(batch[:, 1], sampled)))
    return losses, rows


def agreement(vectors: np.ndarray, topics: np.ndarray, evaluated: int) -> tuple[float, float]:
    """How many of the nearest neighbours, by cosine, of the most frequent words are of their topic; and by chance."""
    vectors, topics = vectors[:evaluated], topics[:evaluated]
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    nearest = np.argsort(-cosines, axis=1)[:, :NEIGHBOURS]
    same = topics[:, np.newaxis] == topics
    chance = (same.sum() - len(topics)) / (same.size - len(topics))
    return float(np.take_along_axis(same, nearest, axis=1).mean()), float(chance)


if __name__ == "__main__":
    main()
