"""Train a Keras model on handwritten digits by model.fit, each rank on its share.

mpirun -np 2 python scripts/train_digits.py
"""

import argparse
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported, or every rank tells of its CPU
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import fusionctl.keras as fusion


def main() -> None:
    """Train, and leave with an error when the accuracy is below 0.95."""
    options = parse_options()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    fusion.init()
    keras.utils.set_random_seed(fusion.rank())  # the broadcast makes the weights equal

    (x, y), (x_test, y_test) = digits()
    model = build_model()
    optimizer = fusion.DistributedOptimizer(keras.optimizers.Adam(1e-3 * fusion.size()))
    model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(
        *shard(x, y, options.batch_size),
        batch_size=options.batch_size,
        epochs=options.epochs,
        callbacks=[fusion.callbacks.BroadcastGlobalVariablesCallback(0), fusion.callbacks.MetricAverageCallback()],
        verbose=2 if fusion.rank() == 0 else 0,
    )
    mine = slice(fusion.rank(), None, fusion.size())
    _, accuracy = model.evaluate(x_test[mine], y_test[mine], verbose=0)
    accuracy = float(fusion.allreduce(tf.constant(accuracy), name="test accuracy"))
    if fusion.rank() == 0:
        print(f"test accuracy {accuracy:.4f} on {fusion.size()} ranks")
    if accuracy < 0.95:
        sys.exit("the test accuracy is below 0.95" if fusion.rank() == 0 else 1)


def parse_options() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description="Train on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="samples per rank and step")
    return parser.parse_args()


def digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """1,797 images, float32 of shape (n, 8, 8, 1) from 0 to 1, and their labels: 1,437 to train and 360 to test."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images = (images[order] / 16).reshape(-1, 8, 8, 1).astype("float32")
    labels = labels[order]
    return (images[:1437], labels[:1437]), (images[1437:], labels[1437:])


def shard(x: np.ndarray, y: np.ndarray, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """The samples of this rank: on every rank the same number of full batches, for each step waits for all ranks."""
    count = len(x) // (fusion.size() * batch_size) * batch_size
    mine = slice(fusion.rank(), count * fusion.size(), fusion.size())
    return x[mine], y[mine]


def build_model() -> keras.Model:
    """A small convolutional network."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


if __name__ == "__main__":
    main()
