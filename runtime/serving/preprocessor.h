// A split's pipeline without its dataset: encoded bytes in, the tensor that a DataLoader of the split gives out.
//
//   penstock::Preprocessor preprocess("job.yaml", "val");
//   preprocess.check(state_from_the_checkpoint);                     // refuses, by name, another pipeline
//   penstock::ImageBatch one = preprocess.run(bytes);                // [1, 3, h, w]; Error(dataset) says what is wrong
//   penstock::ImageBatch many = preprocess.run(list_of_images);      // [n, 3, h, w] and a status for each
//   float* pixels = many.images().as<float>();
//
// Equality: the tensor is, byte for byte, what the loaders make of the same file in the same split, because both call
//   SampleMaker and Finisher; in jobs of arithmetic `fast` with loader.nvjpeg but for what nvJPEG decoded there, which
//   is never asked here. A refused image's place holds what an evaluating loader puts there: a black picture,
//   finished like any other.
// Draws: a pipeline that draws nothing (the rule for evaluation) needs bytes alone. One that draws needs index and
//   epoch of every image, and then gives what a loader gives for that sample; without them the call is refused, naming
//   the transforms that draw. A Python transform counts as one that draws: it gets a generator.
// Two pipelines (gpu_pipeline): index and epoch say which one makes an image, as in a loader; so they are asked for.
// Threads: a pool of its own, `threads` of them (default: the job's loader.threads), takes single images, oldest call
//   first. submit() returns at once: the pool works while the caller does something else.
// Thread-safety: everything may be called from any number of threads at once, but one PendingImages from one.
// Ownership: an ImageBatch owns its memory by reference count, also after the Preprocessor is gone; it may be written
//   to. The encoded bytes are the caller's, and must stay until run() or wait() returned, or the PendingImages is gone.
// GPUs: where loader.executor has any, they make the images that they can, with the same bytes; the threads read and do
//   the rest. When a GPU fails, the threads make what it had.
// Keys: of those that change nothing in a batch, it obeys loader.threads, the loader.* keys for GPUs, python.* and
//   trainer.timeout_s. No other one has a meaning without ranks and a dataset.
// fork(): a child of fork() must make its own; calls on the parent's are refused there.
// Failure: Error(config | usage) from the constructor, as for a DataLoader; Error(runtime) where loader.executor is
//   `gpu` and there is none. Error(usage) for a pipeline that draws, without an index. An image that cannot be used is
//   Error(dataset) from run(bytes), and otherwise a reason in the batch. Error(runtime) where there is no memory, or
//   images are not ready within trainer.timeout_s.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/fields.h"
#include "runtime/pixels/finish.h"

namespace penstock {

struct EncodedImage {
  std::span<const std::byte> bytes;  // a whole image file
  std::optional<int64_t> index;      // of the sample in its dataset; only pipelines that draw ask for it
  int64_t epoch = 0;
  int64_t occurrence = 0;  // how often this index stood earlier in the epoch
};

class ImageBatch {
 public:
  int64_t size() const noexcept { return images_.shape[0]; }
  const TensorView& images() const noexcept { return images_; }  // [n, 3, h, w]; strides tell channels-last
  // [n]: why an image could not be used ("premature end of data in the JPEG header"); empty where it could.
  const std::vector<std::string>& reasons() const noexcept { return reasons_; }
  int64_t num_good() const noexcept;
  // Keeps the images' memory.
  const std::shared_ptr<void>& memory() const noexcept { return memory_; }

 private:
  friend class PreprocessorImpl;
  std::shared_ptr<void> memory_;
  TensorView images_;
  std::vector<std::string> reasons_;
};

// What one GPU has done so far.
struct PreprocessorGpu {
  std::string name;
  int64_t images = 0;
  std::string failure;  // why it is not asked any more
};

class PreprocessorImpl;

// What submit() began. Dropping it takes back the images that no thread has begun, and waits for the few that are being
// made: milliseconds.
class PendingImages {
 public:
  PendingImages() = default;
  PendingImages(PendingImages&&) noexcept = default;
  PendingImages& operator=(PendingImages&& other) noexcept;
  ~PendingImages();

  bool ready() const;
  // Once. `while_waiting` is called a few times a second; what it throws comes out, and wait() may be called again.
  ImageBatch wait(const std::function<void()>& while_waiting = {});

 private:
  friend class PreprocessorImpl;
  struct Request;
  std::shared_ptr<PreprocessorImpl> pool_;
  std::shared_ptr<Request> request_;
};

struct PreprocessorOptions {
  std::vector<std::string> overrides;  // "splits.val.pipeline.0.Resize.size=256"
  std::optional<DType> dtype;          // instead of the pipeline's ToDtype
  std::optional<bool> channels_last;   // instead of the split's
  // Images as they are before finishing, uint8 [n, 3, h, w], for a program that finishes them itself (finisher()), on a
  // GPU say: a quarter of float32's bytes.
  bool raw_images = false;
  int threads = 0;  // 0: loader.threads
  // instead of the split's, where it has a gpu_pipeline, else of loader.cpu_fraction
  std::optional<double> cpu_fraction;
};

class Preprocessor {
 public:
  Preprocessor(const std::string& job_file, const std::string& split, const PreprocessorOptions& options = {});
  // A job that the program made: the job file's text. `name` stands in messages.
  static Preprocessor from_text(const std::string& job_text, const std::string& name, const std::string& split,
                                const PreprocessorOptions& options = {});
  ~Preprocessor();
  Preprocessor(Preprocessor&&) noexcept;
  Preprocessor& operator=(Preprocessor&&) noexcept;

  ImageBatch run(std::span<const std::byte> encoded) const;
  ImageBatch run(const EncodedImage& image) const;
  ImageBatch run(std::vector<EncodedImage> images) const;
  PendingImages submit(std::vector<EncodedImage> images) const;
  // As run(), in memory of the caller's, which is aligned to the elements and has bytes_per_image() for each; gives the
  // reasons. Error(usage) where it has less.
  std::vector<std::string> run_into(std::vector<EncodedImage> images, std::span<std::byte> memory) const;

  int height() const noexcept;
  int width() const noexcept;
  size_t bytes_per_image() const noexcept;    // of what run() gives
  DType dtype() const noexcept;               // finished
  const Finisher& finisher() const noexcept;  // to that; what raw images still need
  int threads() const noexcept;
  const std::vector<std::string>& random_transforms() const noexcept;  // those that draw; empty: nothing is drawn
  std::vector<PreprocessorGpu> gpus() const;                           // empty: the CPU makes all
  const std::string& no_gpu() const noexcept;  // why, where the job's executor is `auto`; else empty
  std::string spec() const;                    // the split as canonical JSON, as DataLoader::spec()

  // 32 hexadecimal digits, equal exactly where transforms with all parameters, arithmetic and decoder versions are
  // equal. Dataset, sampler, batch size, seed and limits do not enter, nor do this object's options.
  std::string fingerprint() const;
  // What a checkpoint keeps of the pipeline where no DataLoader's state is in it: JSON, a few KB.
  std::string state() const;
  // Error(config) naming what differs between this pipeline and the one in `state`: a text of state() or of
  // DataLoader::state(). The text is untrusted.
  void check(const std::string& state) const;

 private:
  explicit Preprocessor(std::shared_ptr<PreprocessorImpl> impl);
  std::shared_ptr<PreprocessorImpl> impl_;
};

}  // namespace penstock
