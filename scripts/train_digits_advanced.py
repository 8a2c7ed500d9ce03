"""Train on handwritten digits by model.fit as large jobs do: augmented images, rates by epoch, checkpoints.

mpirun -np 2 python scripts/train_digits_advanced.py --checkpoints digits
mpirun -np 2 python scripts/train_digits_advanced.py --checkpoints digits --resume --epochs 40
"""

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before TensorFlow is imported, or every rank tells of its CPU
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import keras
import tensorflow as tf
from train_digits import build_model, digits, shard  # type: ignore[import-not-found]

import fusionctl.keras as fusion


def main() -> None:
    """Train, and leave with an error when the accuracy is below 0.95."""
    options = parse_options()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    fusion.init()
    keras.utils.set_random_seed(fusion.rank())  # the broadcast makes the weights equal; images are moved differently

    (x, y), (x_test, y_test) = digits()
    mine = slice(fusion.rank(), None, fusion.size())  # shares of the test images may differ by one: hence weighted
    x_test, y_test = x_test[mine], y_test[mine]
    model, epoch = start(options)
    model.fit(
        *shard(x, y, options.batch_size),
        batch_size=options.batch_size,
        initial_epoch=epoch,
        epochs=options.epochs,
        validation_data=(x_test, y_test),
        callbacks=callbacks(options),
        verbose=2 if fusion.rank() == 0 else 0,
    )
    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    counts = tf.constant([accuracy * len(x_test), len(x_test)])
    correct, total = fusion.allreduce(counts, name="test accuracy", op=fusion.Sum).numpy()
    if fusion.rank() == 0:
        print(f"test accuracy {correct / total:.4f} on {fusion.size()} ranks")
    if correct / total < 0.95:
        sys.exit("the test accuracy is below 0.95" if fusion.rank() == 0 else 1)


def parse_options() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(description="Train on handwritten digits, with augmentation and checkpoints.")
    parser.add_argument("--epochs", type=int, default=24, help="number of the last epoch, from 1")
    parser.add_argument("--batch-size", type=int, default=16, help="samples per rank and step")
    parser.add_argument("--base-lr", type=float, default=0.02, help="learning rate of a single rank")
    parser.add_argument("--warmup-epochs", type=int, default=3, help="epochs until the rate is that of all ranks")
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"), help="folder for the best models")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint, if there is one")
    return parser.parse_args()


def start(options: argparse.Namespace) -> tuple[keras.Model, int]:
    """The compiled model and how many epochs it is trained for; rank 0 alone reads the checkpoint."""
    optimizer = fusion.DistributedOptimizer(keras.optimizers.SGD(options.base_lr, momentum=0.9))
    model = keras.Sequential([keras.Input((8, 8, 1)), *augmentation(), *build_model().layers])
    model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    newest = newest_checkpoint(options.checkpoints) if options.resume and fusion.rank() == 0 else None
    if newest:
        optimizer.build(model.trainable_variables)  # momentum and iterations are read only into what is there
        model.load_weights(newest)
        print(f"resuming after epoch {newest.stem} from {newest}")
    epoch = fusion.broadcast(int(newest.stem) if newest else 0, root_rank=0, name="epoch")
    return model, int(epoch)


def newest_checkpoint(folder: Path) -> Path | None:
    """The file of the latest epoch, and so the best one of its run."""
    return max(folder.glob("*.keras"), key=lambda path: int(path.stem), default=None)


def augmentation() -> list[keras.layers.Layer]:
    """Layers that move, turn and zoom images in training, and pass them in evaluation."""
    return [
        keras.layers.RandomTranslation(0.08, 0.08, fill_mode="constant"),
        keras.layers.RandomRotation(0.03, fill_mode="constant"),
        keras.layers.RandomZoom(0.08, fill_mode="constant"),
    ]


def callbacks(options: argparse.Namespace) -> list[keras.callbacks.Callback]:
    """One rank's state on all, averages of metrics, the rate by epoch, and the best models on disk."""
    rate = options.base_lr * fusion.size()

    def stage(epoch: float) -> float:
        done = epoch / options.epochs
        return 1.0 if done < 0.6 else 0.1 if done < 0.85 else 0.01

    options.checkpoints.mkdir(parents=True, exist_ok=True)
    return [
        fusion.callbacks.BroadcastGlobalVariablesCallback(0),
        fusion.callbacks.MetricAverageCallback(weighted=True),
        fusion.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=options.warmup_epochs, verbose=1),
        fusion.callbacks.LearningRateScheduleCallback(rate, stage, start_epoch=options.warmup_epochs),
        fusion.callbacks.BestModelCheckpoint(str(options.checkpoints / "{epoch}.keras")),
    ]


if __name__ == "__main__":
    main()
