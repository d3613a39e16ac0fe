// The client: what a training program holds (docs/guides/cpp.md). Beside this header and those that it
// includes a program has runtime/pixels/finish.h, for finisher(), and runtime/serving/preprocessor.h, a pipeline alone.
//
//   penstock::DataLoader train("job.yaml", "train");
//   for (int epoch = 0; epoch < 90; ++epoch) {
//     train.set_epoch(epoch);                       // optional: every begin() advances by itself
//     for (auto& batch : train) {
//       float* images = batch.image().as<float>();  // [n, 3, 224, 224], normalised
//       int64_t* labels = batch["label"].as<int64_t>();
//     }                                             // the batch buffer goes back when the batch is dropped
//   }
//
//   penstock::BatchStream iteration = train.start();  // the same without iterators
//   while (penstock::Batch batch = iteration.next()) step(batch);
//   save(train.state(epoch, steps_taken));          // and after a restart:
//   const penstock::Cursor next = train.resume(saved);
//   iteration = train.start_at(next.epoch, next.step);
//
// Where the batches come from: under `penstock run` (PENSTOCK_RECEIVER is set) from this trainer's receiver. Otherwise,
//   where `attach` or PENSTOCK_ATTACH=1 asks for it, from a `penstock serve` of this job on this host, the receiver of
//   LOCAL_RANK. RANK and WORLD_SIZE must then be the receiver's, and the overrides of the serve command line come
//   before the program's.
//   Otherwise embedded: the same loader, balancer and sampler run in threads of this process. Then the program's place
//   among several trainers comes from DataLoaderOptions, or RANK and WORLD_SIZE; where a launcher with several tasks is
//   seen but no rank can be told, construction is refused, because every rank would get the same data.
// Ownership: a Batch owns its batch buffer by reference count; copies share it; it stays valid, and may be written to,
//   until the last copy is gone, also after the DataLoader is. What its functions give (views, values, pointers) is
//   valid for as long as a copy of the batch is kept. Streams and iterators, too, may outlive their DataLoader: the
//   receiver is left, and embedded threads end, with the last of these. A batch alone keeps its memory, and neither.
//   A DataLoader that was moved from may be assigned to or destroyed, and nothing else.
//   The program may hold `trainer.hold` batches besides the one in use; with all of them held next() and ++ warn
//   (warnings()), then wait for one to be dropped, then fail: after a few seconds where none was ever dropped, else
//   after its longest wait. It never hands out memory that is in use.
// Iteration: begin() starts a new iteration and gives its first batch; several iterators may be alive, each with its
//   own position. `break` and begin() again just work. start() begins an iteration without waiting for its first batch.
//   A `train` split advances its epoch at every begin() unless set_epoch was called since the last one; an `eval` split
//   replays epoch 0. begin_at() and start_at() use up a set_epoch() too: the next begin() has the epoch behind theirs.
// Thread-safety: one thread at a time per DataLoader and its streams and iterators, but end_waits() from any;
//   different DataLoaders are independent; batches may be dropped in any thread. fork() in the program is safe for
//   the parent; the child must not use the loader, and batches it inherits are the parent's memory, not a copy: what
//   either writes there the other sees.
// Waiting: the constructor waits for the receiver, and until the dataset is listed; begin(), next() and ++ for a batch.
//   None waits beyond trainer.timeout_s of silence; for batches options.timeout_s takes its place, if it is given. With
//   balancer.on_all_lost: wait a batch may take longer by wait_s and lost_after_s.
// State: state(epoch, step) is what a checkpoint keeps, the same text on every replica; resume(text) gives the place
//   where an iteration begun with begin_at() or start_at() goes on, or refuses, naming what differs: another split,
//   dataset, pipeline, arithmetic or order. The text is untrusted: nothing in it is executed.
// Interruption: options.while_waiting is called a few times a second while the constructor or next() waits; what it
//   throws comes out of them. The batch that was asked for is not lost: the next call gives it.
// Failure: Error: config, dataset (also an unusable sample under on_error: fail, at its batch), usage (also another
//   program at this receiver, or replicas at different cursors), peer_lost when the receiver is not there, went away,
//   or stays silent for so long. Where an iteration itself cannot go on (dataset, replicas at different
//   cursors), each further next() of it throws the same; other iterations go on. After peer_lost a new DataLoader is
//   needed, but where only a batch did not come in time: the next call waits for the same one. Batches that are held
//   stay valid. An iterator whose ++ threw has no batch, and compares as the end does; another ++ asks again. A begin()
//   that threw may have begun its epoch: set_epoch() has the next one begin that again.
// The library installs no signal handlers and never prints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"
#include "runtime/base/fields.h"

namespace penstock {

// A place in a split's iterations: the next batch is `step` of `epoch`.
struct Cursor {
  int64_t epoch = 0;
  int64_t step = 0;
  friend bool operator==(const Cursor&, const Cursor&) = default;
};

class DataLoaderImpl;
class Finisher;
class ReceiverHost;
struct BatchState;

// An empty Batch (default-constructed, or behind the end) can only be tested with `if (batch)`; every other call on it is
// an error of the caller.
class Batch {
 public:
  Batch() = default;

  int64_t size() const;  // samples in it; the last batch of an epoch may be shorter
  int64_t epoch() const;
  int64_t step() const;
  // fast: which samples and which draws is promised; the exact pixel values are not.
  Arithmetic arithmetic() const;
  TensorView image() const { return (*this)["image"]; }  // [n, 3, h, w]; strides tell channels-last
  TensorView label() const { return (*this)["label"]; }  // int64 [n]
  // Error(usage) with the fields there are; also for one of bytes or text, which has no array.
  TensorView operator[](const std::string& field) const;
  // Sample number `i`'s value of a bytes or text field (text: UTF-8); empty for an unusable sample. Error(usage) for
  // other fields.
  std::string_view value(const std::string& field, int64_t i) const;
  FieldKind kind(const std::string& field) const;
  std::vector<std::string> fields() const;
  const int64_t* indices() const;      // [n]: dataset index of each sample
  const uint8_t* valid() const;        // [n]: 0 for padding and unreadable samples in `eval`
  const uint8_t* substituted() const;  // [n]: 1 where another sample stands in for an unusable one
  int64_t num_valid() const;
  int64_t held() const;  // batches of this one's pool that the program holds, this one included
  explicit operator bool() const noexcept { return state_ != nullptr; }

 private:
  friend struct BatchState;
  size_t place_of(const std::string& field) const;
  std::shared_ptr<BatchState> state_;
};

struct DataLoaderOptions {
  std::vector<std::string> overrides;  // "splits.train.batch_size=32"
  std::optional<bool> attach;          // to `penstock serve`; nothing: if PENSTOCK_ATTACH is 1
  std::optional<int> num_replicas;     // embedded only
  std::optional<int> rank;
  // num_replicas and rank above count ranks; each roles.ranks_per_replica of them form a replica.
  bool places_are_ranks = false;
  // For a batch that next() and ++ take, at most 1e9; 0: trainer.timeout_s, as for all other waits.
  double timeout_s = 0;
  std::optional<DType> dtype;  // of images, instead of the pipeline's ToDtype
  std::optional<bool> channels_last;
  // Images as the loaders send them, uint8 [n, 3, h, w], for a program that finishes them itself (finisher()), on a
  // GPU say: a quarter of float32's bytes. Not where MixUp mixes batches: raw_images() tells.
  bool raw_images = false;
  // Besides, images that a loader's GPU made may stay in memory that this GPU exports, from where the Python package
  // reads them (gpu_images.h). The program then finishes all images of a batch on a GPU of its own. Not where MixUp or
  // CutMix mix batches, nor where batches are dumped.
  bool gpu_images = false;
  // From the constructor, begin(), next() and ++; also kept in warnings(), but for the one of a constructor that waits
  // for a `penstock serve`. What it throws comes out of those.
  std::function<void(const std::string&)> on_warning;
  std::function<void()> while_waiting;  // may throw, to end the wait: a program's way to Ctrl-C
  // Called in the thread that drops the last of the DataLoader, its iterations and its batches. It must call `end` once
  // and throw nothing. `end` may wait for embedded threads, even until a folder has been listed, so a lock that those
  // threads need, such as Python's GIL, must not be held meanwhile. Unset: `end` is called directly.
  std::function<void(const std::function<void()>& end)> ending;
  // Set by bindings/mpi/join.h, for a rank that joined a job; otherwise null.
  std::shared_ptr<ReceiverHost> receiver;
};

// One iteration over a split, batch by batch. The iteration ends when its last copy is gone.
class BatchStream {
 public:
  BatchStream() = default;
  Batch next();  // an empty one at the end, and ever after

 private:
  friend class DataLoader;
  struct Iteration;
  std::shared_ptr<Iteration> iteration_;
};

// The same as an input iterator: ++ drops the current batch (unless a copy is held) and takes the next one.
class BatchIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;
  using pointer = Batch*;
  using reference = Batch&;

  BatchIterator() = default;  // the end
  Batch& operator*() const;
  Batch* operator->() const { return &**this; }
  BatchIterator& operator++();
  void operator++(int) { ++*this; }
  friend bool operator==(const BatchIterator& a, const BatchIterator& b) { return a.at_end() == b.at_end(); }

 private:
  friend class DataLoader;
  struct Place;
  bool at_end() const noexcept;
  std::shared_ptr<Place> place_;
};

class DataLoader {
 public:
  DataLoader(const std::string& job_file, const std::string& split, const DataLoaderOptions& options = {});
  // A job that the program made: the job file's text. `name` stands in messages; relative folders start at the current
  // one.
  static DataLoader from_text(const std::string& job_text, const std::string& name, const std::string& split,
                              const DataLoaderOptions& options = {});
  ~DataLoader();
  DataLoader(DataLoader&&) noexcept;
  DataLoader& operator=(DataLoader&&) noexcept;

  BatchIterator begin();
  BatchIterator end() { return {}; }
  // An iteration that begins at `step` of `epoch`: for resuming.
  BatchIterator begin_at(int64_t epoch, int64_t step);
  BatchStream start();  // as begin(): advances the epoch
  BatchStream start_at(int64_t epoch, int64_t step);
  // An iteration in an order that the program gives: this replica's own share of the epoch, all of it, also where
  // `step` is not 0. For splits with sampler.program; at most 8 million indices.
  BatchStream start_at(int64_t epoch, int64_t step, std::vector<int64_t> order);

  // What a checkpoint keeps when `step` batches of `epoch` were taken on every replica.
  // For splits with sampler.program, `order_samples` is the length of an iteration's order: size() does not know it.
  std::string state(int64_t epoch, int64_t step, int64_t order_samples = 0) const;
  Cursor resume(const std::string& state, int64_t order_samples = 0) const;  // Error(config) naming what differs

  // From any thread: whoever waits for a batch of this loader, or will, has an Error(usage) soon.
  void end_waits() noexcept;

  void set_epoch(int64_t epoch);
  int64_t epoch() const noexcept;  // that the next begin() will give
  int64_t size() const noexcept;   // batches per epoch; the same for every replica
  int64_t batch_size() const noexcept;
  int hold() const noexcept;             // trainer.hold: batches that the program may hold besides the one in use
  int64_t num_samples() const noexcept;  // of this replica that count, per epoch (padding in `eval` does not)
  int64_t dataset_size() const noexcept;
  int num_replicas() const noexcept;
  int rank() const noexcept;               // this replica's number, which torch's samplers call rank
  int ranks_per_replica() const noexcept;  // the job's
  const std::vector<std::string>& class_names() const noexcept;
  std::string spec() const;                        // the split as canonical JSON: equal specs, equal streams
  std::vector<std::string> warnings() const;       // and forgets them
  std::string stats_json();                        // this receiver's report so far
  std::string report_json();                       // the same as a job's report, bottleneck included
  std::vector<std::string> fields() const;         // names of what a batch holds
  FieldKind kind(const std::string& field) const;  // Error(usage) where a batch has no such field
  bool embedded() const noexcept;
  bool raw_images() const noexcept;  // are images raw, as the options asked?
  // What makes of a raw image what the job and the options say: on this CPU by run(), elsewhere by its table
  // (runtime/pixels/finish.h, which a program that calls this includes).
  Finisher finisher() const;

 private:
  friend class DataLoaderImpl;
  explicit DataLoader(std::shared_ptr<DataLoaderImpl> impl);
  std::shared_ptr<DataLoaderImpl> impl_;
};

}  // namespace penstock
