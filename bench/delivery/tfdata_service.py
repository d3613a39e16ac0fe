"""tf.data service: a dispatcher and one worker in a process of their own send batches to the trainer by gRPC.

Variants: `service` is that; `local` is plain tf.data in the trainer's process, without any hand-over. Both give what
TensorFlow programs consume: float32, channels last.
"""

import os
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import common
import numpy as np
import tensorflow as tf


def dataset_of(trace, batch, threads):
    paths = tf.constant([sample.path for sample in trace])
    windows = tf.constant([[sample.y, sample.x, sample.height, sample.width] for sample in trace], dtype=tf.int32)
    flips = tf.constant([sample.flip for sample in trace])
    scale = tf.constant([1 / (255 * value) for value in common.STD], dtype=tf.float32)
    shift = tf.constant([-mean / std for mean, std in zip(common.MEAN, common.STD)], dtype=tf.float32)

    def load(index, path, window, flip):
        image = tf.image.decode_and_crop_jpeg(tf.io.read_file(path), window, channels=3, dct_method="INTEGER_ACCURATE")
        image = tf.image.resize(image, [common.SIZE, common.SIZE], method="bilinear", antialias=True)
        image = tf.cond(flip, lambda: tf.reverse(image, axis=[1]), lambda: image)
        return index, image * scale + shift

    dataset = tf.data.Dataset.from_tensor_slices((tf.range(len(trace), dtype=tf.int64), paths, windows, flips))
    dataset = dataset.repeat().map(load, num_parallel_calls=threads, deterministic=True)
    dataset = dataset.batch(batch, drop_remainder=True).prefetch(2)
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    return dataset.with_options(options)


def serve():
    """The service's process: prints the dispatcher's address, ends when its input is closed."""
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer(service.DispatcherConfig(port=0))
    address = dispatcher.target.split("://")[1]
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address, port=0))
    print(dispatcher.target, flush=True)
    sys.stdin.read()
    del worker
    os._exit(0)  # clients that are still connected must not hold it up


class TensorFlow(common.Competitor):
    variants = ("service", "local")
    server = None

    def versions(self):
        return {"tensorflow": tf.__version__}

    def batches(self, trace):
        dataset = dataset_of(trace, self.options.batch, self.options.threads)
        if self.options.variant == "service":
            self.server = subprocess.Popen(
                [sys.executable, os.path.abspath(__file__), "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            target = self.server.stdout.readline().decode().strip()
            distribute = tf.data.experimental.service.distribute(
                processing_mode=tf.data.experimental.service.ShardingPolicy.OFF, service=target
            )
            dataset = dataset.apply(distribute).prefetch(2)
        return iter(dataset)

    def array(self, batch):
        return np.asarray(memoryview(batch[1]))

    def check(self, trace, count, out):
        """Batches may arrive in another order than they were made in, so they are put in place by index."""
        array = np.zeros((count, 3, common.SIZE, common.SIZE), dtype=np.float32)
        missing = set(range(count))
        for indices, images in self.batches(trace):
            for index, image in zip(indices.numpy(), images.numpy()):
                if index in missing:
                    array[index] = image.transpose(2, 0, 1)
                    missing.discard(index)
            if not missing:
                break
        np.save(out, array)
        return {"ok": True, "images": count, "versions": self.versions()}

    def close(self):
        if self.server is not None:
            self.server.stdin.close()
            self.server.wait(timeout=20)


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve()
    else:
        common.main(TensorFlow)
