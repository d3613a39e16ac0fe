#include "runtime/gpu/scan_planner.h"

#include <algorithm>
#include <cstring>

namespace penstock {
namespace {

bool ends_in_a_marker(EncodedView file) {
  return file.size() >= 2 && file[file.size() - 2] == std::byte{0xFF} && file.back() == std::byte{0xD9};
}

}  // namespace

bool ScanPlanner::plan(EncodedView bytes, const JpegFrame& frame, const McuWindow& window, uint32_t subsequence_bytes) {
  if (frame.progressive || bytes.size() > kLargestScannedFile) return false;
  const bool restarts = frame.restart_interval != 0;
  const int64_t mcus = int64_t{frame.mcu_columns} * window.end_row;
  if (restarts && frame.restart_interval < mcus) return false;
  if (frame.scan_begin >= bytes.size() || !tables_.make(frame)) return false;
  size_t end = bytes.size();
  const bool to_the_first = restarts || !ends_in_a_marker(bytes);
  if (size_t marker = 0; to_the_first && find_marker(bytes, frame.scan_begin, marker)) end = marker + 2;
  bytes_ = bytes.subspan(frame.scan_begin, end - frame.scan_begin);
  const int64_t blocks = mcus * static_cast<int64_t>(tables_.blocks());
  // A block has two codes at least, and a code a bit.
  if (blocks > static_cast<int64_t>(bytes_.size()) * 4) return false;
  blocks_ = static_cast<uint32_t>(blocks);
  subsequence_bytes_ = subsequence_bytes;
  subsequences_ = static_cast<uint32_t>((bytes_.size() + subsequence_bytes - 1) / subsequence_bytes);
  list_rounds();
  return true;
}

void ScanPlanner::list_rounds() {
  rounds_.clear();
  rounds_.push_back({.units = subsequences_, .assumed = true});
  for (const uint32_t group : kSyncRounds) {
    const uint32_t groups = (subsequences_ + group - 1) / group;
    for (const uint32_t first : {1U, 0U}) {
      const uint32_t units = (groups - first + 1) / 2;
      // Where there is one group, nothing stands before it.
      if (units == 0 || subsequences_ == 1) continue;
      rounds_.push_back({.units = units, .group = group, .first = first, .step = 2});
    }
  }
}

void ScanPlanner::copy_bytes(std::byte* to) const {
  std::memcpy(to, bytes_.data(), bytes_.size());
}

}  // namespace penstock
