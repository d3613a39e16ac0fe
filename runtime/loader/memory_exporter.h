// What a loader exports of its GPUs' memory: offered to receivers, exported with chunks, taken back.
//
//   MemoryExporter exporter(endpoint, executor, {.gpus = 2, .links = true}, notice);
//   work->exported_gpus = exporter.gpus_for(lease.receiver, lease.gpu_reader);  // before the work is submitted
//   header.buffer_range = exporter.export_range(*work);               // it is done, and on its way
//   exporter.drop(*work);                                             // or is not sent
//   exporter.used(receiver, export_used);  exporter.back(receiver, buffer_range_returned);  // what receivers say
//   // the same, of memory that is linked
//   exporter.asked(receiver, link_asked);  exporter.asked(receiver, buffer_ranges_asked);
//   exporter.lost(receiver);                                          // it is dead, and its programs perhaps not yet
//   exporter.given_up();                                              // this loader was, and lives
//
// The states of one GPU and one program that reads images from GPUs' memory (a client of a receiver):
//
//   nothing --gpus_for()--> offered --ExportUsed(true)--> exporting --ExportUsed(false)--> offered
//                              |  ^                          |
//                  LinkAsked:  |  '------ its link failed ---'
//                  LinkOpened  '--> offered, and the link joins, before it is used
//
// Until a program has said that it has the memory open, its chunks go by the host; so nothing is ever sent that nobody
//   can read, and nobody waits. A receiver that no descriptor gets to (on another node, or reached by MPI alone) is
//   offered memory to be linked, where the job says so, and else nothing.
// Thread-safety: the loader's event loop alone. Ownership: the links; endpoint and executor must outlive it.
// Failure: Error(peer_lost) where a receiver speaks of a GPU that there is not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "runtime/loader/executor.h"
#include "runtime/loader/gpu_links.h"
#include "runtime/protocol/messages.h"
#include "transport/transport.h"

namespace penstock {

class MemoryExporter {
 public:
  struct Options {
    size_t gpus = 0;     // that the executor has
    bool links = false;  // loader.gpu_links
  };
  // `notice`: for people.
  MemoryExporter(Endpoint& endpoint, const Executor& executor, const Options& options,
                 std::function<void(const std::string&)> notice = {})
      : endpoint_(endpoint), executor_(executor), options_(options), notice_(std::move(notice)), links_(executor) {}

  // A bit each, as ChunkWork::exported_gpus. Offers the receiver what it was not offered yet. `gpu_reader`: 0: nobody.
  uint64_t gpus_for(PeerId receiver, int32_t gpu_reader);
  std::optional<ChunkBufferRange> export_range(const ChunkWork& work);
  void drop(const ChunkWork& work) const;

  void used(PeerId receiver, const ExportUsed& message);
  void back(PeerId receiver, const BufferRangeReturned& message) const;
  void asked(PeerId receiver, const LinkAsked& message);
  void asked(PeerId receiver, const BufferRangesAsked& message);
  void lost(PeerId receiver);
  // This loader was given up: receivers have let go of what is linked, and are offered it again.
  void given_up();
  void end_links() { links_.close_all(); }  // before the executor goes

 private:
  BufferRanges& buffer_ranges_of(PeerId receiver, int32_t gpu) const;
  void offer(PeerId receiver);
  bool linked(PeerId receiver) const { return !endpoint_.capabilities(receiver).carries_descriptors; }
  bool still_linked(const GpuReader& reader);
  void notice_once(const std::string& text);

  Endpoint& endpoint_;
  const Executor& executor_;
  Options options_;
  std::function<void(const std::string&)> notice_;
  GpuLinks links_;
  std::set<PeerId> offered_;
  std::set<GpuReader> exporting_;
  std::set<std::string> noticed_;
};

}  // namespace penstock
