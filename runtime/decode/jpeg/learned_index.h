// Restart points learned while the first epoch runs, in memory: what makes the second epoch of an untouched folder
// decode at an index's speed though nobody has made one.
//
//   auto memory = std::make_shared<LearnedMemory>(256 << 20);             // one per loader
//   LearnedIndexes indexes(memory);                                       // one per dataset, shared by all threads
//   const auto known = indexes.find(sample, bytes);                       // nullptr: nothing of use
//   SideIndex more;
//   decoder.decode(bytes, header, box, storage, pixels,
//                  {.index = known ? &known->index : nullptr, .learned = indexes.learns() ? &more : nullptr});
//   if (!more.empty()) indexes.keep(sample, bytes, known, std::move(more));
//
// How: without an index a decoder goes from the file's first MCU to the crop's last. On that way it notes where some
//   MCUs begin; that is a partial index (side_index.h). A later crop that ends above the index's end decodes by it, one
//   that ends below goes on from there, and makes the index longer.
// Invariant: what is kept here for a sample was noted on a way through these very bytes that began at the first MCU,
//   and on which libjpeg-turbo would not have said a word. Three things keep it. Decoders give a point only after a
//   decoding that was "supported" to its end. A longer index begins with the one it was made longer from, and that
//   decoding went on from there. And bytes are known by their XXH3-128, taken of all of them at each find(): a file
//   that has changed since has no index, and the one learned of it next replaces the old.
//   So status and pixels are those of decoding without: the reference (jpeg_decoder.h) reads rows 0 to the crop's last,
//   and all of that lies on the way that was gone, or on its continuation.
// Bound: LearnedMemory's limit, for all datasets of a loader together; less than one per cent of a photo's bytes. When
//   it is reached nothing more is learned, and what is there stays: a shuffled epoch meets all samples equally often.
//   When the limit is lowered, indexes go as their samples are met, until the rest is within.
// Thread-safety: everything from any thread. A lock is held for a look into a map, never while bytes are hashed or
// decoded.
// Ownership: what find() gave stays as long as its caller keeps it.
// Failure: std::bad_alloc alone.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "runtime/base/hash.h"
#include "runtime/base/thread_annotations.h"
#include "runtime/decode/image.h"
#include "runtime/decode/jpeg/side_index.h"

namespace penstock {

struct LearnedFigures {
  int64_t photos = 0;  // whose index is there
  int64_t bytes = 0;   // that they take
  int64_t used = 0;    // decodings that had one
};

// The bound that the datasets of a loader share. Its numbers publish nothing but themselves, hence relaxed.
class LearnedMemory {
 public:
  explicit LearnedMemory(int64_t limit_bytes) : limit_(limit_bytes) {}

  void set_limit(int64_t bytes) noexcept;
  // Whether the next index would hardly find room.
  bool full() const noexcept {
    return bytes_.load(std::memory_order_relaxed) + kUsualIndex > limit_.load(std::memory_order_relaxed);
  }
  LearnedFigures figures() const noexcept;

 private:
  friend class LearnedIndexes;
  bool change(int64_t bytes, int64_t photos) noexcept;
  bool over() const noexcept { return bytes_.load(std::memory_order_relaxed) > limit_.load(std::memory_order_relaxed); }

  static constexpr int64_t kUsualIndex = 1024;  // bytes

  std::atomic<int64_t> limit_;
  std::atomic<int64_t> bytes_{0};
  std::atomic<int64_t> photos_{0};
  std::atomic<int64_t> used_{0};
};

class LearnedIndexes {
 public:
  struct Known {
    Sum128 sum;  // of the file's bytes
    SideIndex index;
  };

  explicit LearnedIndexes(std::shared_ptr<LearnedMemory> memory);
  ~LearnedIndexes();
  LearnedIndexes(const LearnedIndexes&) = delete;
  LearnedIndexes& operator=(const LearnedIndexes&) = delete;

  // Whether a new index would be kept, as far as is known.
  bool learns() const noexcept { return !memory_->full(); }
  // What was learned of just these bytes.
  std::shared_ptr<const Known> find(int64_t sample, EncodedView bytes);
  // `index`: learned of these bytes, beyond what `found` has. Of two for the same bytes the longer one stays.
  void keep(int64_t sample, EncodedView bytes, const std::shared_ptr<const Known>& found, SideIndex index);
  // Forgets all of them: others need the room more.
  void clear();

 private:
  static constexpr size_t kShards = 16;  // so that threads seldom want the same lock
  struct Shard {
    Mutex mutex;
    std::unordered_map<int64_t, std::shared_ptr<const Known>> known PENSTOCK_GUARDED_BY(mutex);
  };
  Shard& shard_of(int64_t sample) { return shards_[static_cast<size_t>(sample) % kShards]; }
  static int64_t cost(const Known& known);

  const std::shared_ptr<LearnedMemory> memory_;
  std::array<Shard, kShards> shards_;
};

}  // namespace penstock
