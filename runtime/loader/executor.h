// An executor makes chunks: a pool of CPU threads, or (in runtime/cuda) a card.
//
//   executor.submit(work);                      // from the loader's event loop
//   while (auto done = executor.next_done()) …  // when done_fd() is readable
//
// Works are begun in the order of submission; several may be under way. A work is the executor's from submit() until
// next_done() returns it: only then may anybody else touch its cell.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/loader/split_context.h"
#include "runtime/protocol/chunk.h"
#include "transport/transport.h"

namespace penstock {

struct ChunkWork {
  LeaseGranted lease;
  std::shared_ptr<const SplitContext> split;
  CellRef cell;
  uint64_t reads = 0;           // ReadAhead's ticket
  std::byte* memory = nullptr;  // of the cell; laid out by chunk_layout(split->fields(), lease.samples.size())

  // Filled by the executor.
  std::vector<SampleRecord> records;
  std::string failure;  // the environment's fault, naming the file; empty when the chunk is whole
  int64_t busy_ns = 0;
  int64_t bytes = 0;
  int64_t pixels = 0;
};

struct ExecutorFigures {
  int64_t samples = 0;
  int64_t busy_ns = 0;    // summed over threads
  int64_t read_ns = 0;
  int64_t decode_ns = 0;
  int64_t augment_ns = 0;
  int64_t encoded_bytes = 0;
  int threads = 0;
};

class Executor {
 public:
  virtual ~Executor() = default;
  virtual void submit(std::unique_ptr<ChunkWork> work) = 0;
  virtual std::unique_ptr<ChunkWork> next_done() = 0;  // nullptr when nothing is done
  virtual int done_fd() const = 0;
  // Takes back a work that no thread has begun; nullptr when it is too late.
  virtual std::unique_ptr<ChunkWork> withdraw(const LeaseKey& lease) = 0;
  virtual ExecutorFigures figures() const = 0;
};

// `cpus`: hardware threads to run on; empty: leave it to the kernel.
std::unique_ptr<Executor> make_cpu_executor(int threads, const std::vector<int>& cpus);

}  // namespace penstock
