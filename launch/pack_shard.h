// One shard of a pack being written: header, records as they come, its own table, trailer.
//
//   ShardWriter shard(input, folder, /*number=*/0, /*first=*/0, id, /*restart_points=*/true);
//   shard.add(made);                             // sample number first, first + 1, …
//   const FinishedShard done = shard.finish();   // whole and on the disk, under the name of a part file
//   shard.publish();                             // ... and under its own
//
// Thread-safety: one thread. Failure: FileError; a shard that is not published leaves no file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launch/pack_samples.h"
#include "runtime/base/atomic_file.h"
#include "runtime/datasets/pack_format.h"

namespace penstock {

struct FinishedShard {
  SampleTable table;
  PackTrailer trailer;
  Sum128 stamp;  // of the source's files that are one sample each
};

// The checksum over PackInput::stamp() of all samples of a shard.
Sum128 stamp_of(const std::vector<uint64_t>& stamps);

class ShardWriter {
 public:
  // `input` must outlive the object.
  ShardWriter(const PackInput& input, const std::string& folder, size_t number, int64_t first, const Sum128& id,
              bool restart_points);

  bool empty() const { return builder_.size() == 0; }
  uint64_t size() const { return file_.size(); }
  void add(const PackedSample& sample);
  FinishedShard finish();
  void publish() { file_.publish(); }

 private:
  void pad();

  const PackInput& input_;
  AtomicFile file_;
  TableBuilder builder_;
  int64_t first_;
  std::optional<size_t> entry_field_;
  std::vector<std::string> notes_;
  std::vector<uint64_t> stamps_;
};

}  // namespace penstock
