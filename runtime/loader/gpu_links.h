// A loader's ends of links to trainers' GPUs that no descriptor gets to: one a GPU and a program that reads there.
//
//   GpuLinks links(executor);
//   const std::string id = links.open(reader, identity);      // for its end; the link joins when that one comes
//   if (auto why = links.ended(reader)) links.close(reader);  // why it does not go on
//   links.send(reader, runs);                                 // what the program asked for, in its order
//   links.close_all(receiver);                                // it is dead
//
// Thread-safety: the loader's event loop alone, which waits for nothing here but the ends of links. Ownership: the
//   links; the executor's GPUs must outlive it.
// Failure: open(): Error(runtime) where GPUs cannot be linked, and where both are one GPU: NCCL takes none twice, and
//   would wait for itself. send(): Error(peer_lost) for what is not in the GPU's shared memory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/base/memory_range.h"
#include "runtime/loader/executor.h"
#include "transport/transport.h"

namespace penstock {

// A program, by its receiver and its number there, and the loader's GPU that it reads from.
struct GpuReader {
  PeerId receiver = 0;
  int32_t reader = 0;
  int32_t gpu = 0;

  friend auto operator<=>(const GpuReader&, const GpuReader&) = default;
};

class GpuLinks {
 public:
  explicit GpuLinks(const Executor& executor) : executor_(executor) {}

  // Closes the link that this reader had before, if any.
  std::string open(const GpuReader& reader, const std::string& identity);
  // Why the link ended; nothing while it lives, whether it has joined or not.
  std::optional<std::string> ended(const GpuReader& reader) const;
  void send(const GpuReader& reader, const std::vector<MemoryRange>& runs);
  void close(const GpuReader& reader) { links_.erase(reader); }
  void close_all(PeerId receiver);
  void close_all() { links_.clear(); }

 private:
  const Executor& executor_;
  std::map<GpuReader, std::unique_ptr<GpuLink>> links_;
};

}  // namespace penstock
