"""Train on handwritten digits by a loop of one's own and a gradient tape.

mpirun -np 2 python scripts/train_digits_tape.py
"""

import argparse
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported, or every rank tells of its CPU
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import keras
import tensorflow as tf
from train_digits import build_model, digits, parse_options, shard  # type: ignore[import-not-found]

import fusionctl.tensorflow as fusion


def main() -> None:
    """Train, and leave with an error when the accuracy is below 0.95."""
    options = parse_options()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    fusion.init()
    keras.utils.set_random_seed(fusion.rank())  # the broadcast makes the weights equal

    (x, y), (x_test, y_test) = digits()
    x, y = shard(x, y, options.batch_size)
    model = build_model()
    train(model, x, y, options)

    mine = slice(fusion.rank(), None, fusion.size())
    correct = tf.equal(tf.argmax(model(x_test[mine]), 1), y_test[mine])
    accuracy = float(fusion.allreduce(tf.reduce_mean(tf.cast(correct, tf.float32)), name="test accuracy"))
    if fusion.rank() == 0:
        print(f"test accuracy {accuracy:.4f} on {fusion.size()} ranks")
    if accuracy < 0.95:
        sys.exit("the test accuracy is below 0.95" if fusion.rank() == 0 else 1)


def train(model: keras.Model, x: tf.Tensor, y: tf.Tensor, options: argparse.Namespace) -> None:
    """Some epochs of gradient descent by Adam, from the weights of rank 0."""
    optimizer = keras.optimizers.Adam(1e-3 * fusion.size())
    optimizer.build(model.trainable_variables)
    fusion.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0)
    loss_of = keras.losses.SparseCategoricalCrossentropy()

    @tf.function  # type: ignore[untyped-decorator]
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with fusion.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = loss_of(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    batches = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x)).batch(options.batch_size)
    for epoch in range(options.epochs):
        losses = [step(images, labels) for images, labels in batches]
        loss = fusion.allreduce(tf.reduce_mean(losses), name="loss of the epoch")
        if fusion.rank() == 0:
            print(f"epoch {epoch + 1}: loss {float(loss):.4f}")


if __name__ == "__main__":
    main()
