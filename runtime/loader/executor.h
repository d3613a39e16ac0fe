// An executor makes chunks: a pool of CPU threads, alone or with cards.
//
//   executor.submit(work);                      // from the loader's event loop
//   while (auto done = executor.next_done()) …  // when done_fd() is readable
//
// Works are begun in the order of submission; several may be under way. A work is the executor's from submit() until
// next_done() returns it: only then may anybody else touch its cell.
// With cards the threads read and draw, decode the entropy of progressive files and the like, and leave the rest to a card
//   (gpu/card_lanes.h) of the images that it takes; of the others, and while no card is free, they make all. Of a card
//   that fails they make again what it had. Bytes, records and verdicts are the same.
// A work that may be shared has a piece of one card's memory (gpu/card_pieces.h), with the images that this card has made;
//   their records say `on_card`. Of samples that are an image and a label the cell has nothing of those images, and the
//   record their hash; of others the cell has them, too. All else is made in its cell as ever.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/gpu/card_lanes.h"
#include "runtime/gpu/card_pieces.h"
#include "runtime/protocol/chunk.h"
#include "runtime/sample/split_context.h"
#include "transport/transport.h"

namespace penstock {

struct ChunkWork {
  LeaseGranted lease;
  std::shared_ptr<const SplitContext> split;
  CellRef cell;
  uint64_t reads = 0;           // ReadAhead's ticket
  std::byte* memory = nullptr;  // of the cell; laid out by chunk_layout(split->fields(), lease.samples.size())

  // How to make sample `i` where it is none of the split's source; may be called again for the same. Empty: as
  // SampleMaker::make() does.
  std::function<SampleRecord(SampleMaker& maker, size_t i, std::span<std::byte* const> fields)> make;
  // What is done to sample `i` when its image is there, by one of the threads; before the work is done, and once, unless
  // the work fails. Empty: nothing.
  std::function<void(size_t i)> finish;

  // Cards, a bit each, in whose memory its images may stay, for another process to read: the one that the chunk goes to.
  uint64_t share = 0;

  // Filled by the executor.
  struct Shared {
    size_t card = 0;
    CardPiece piece;  // room for all images of the chunk, one after the other; the work's owner lends it, or drops it
  };
  std::optional<Shared> shared;  // only where one has made any
  std::vector<SampleRecord> records;
  std::string failure;  // the environment's fault, naming the file; empty when the chunk is whole
  int64_t busy_ns = 0;
  int64_t bytes = 0;
  int64_t pixels = 0;
};

struct ExecutorFigures {
  int64_t samples = 0;
  int64_t busy_ns = 0;  // summed over threads
  int64_t read_ns = 0;
  int64_t decode_ns = 0;
  int64_t augment_ns = 0;
  int64_t encoded_bytes = 0;
  int threads = 0;
  std::vector<CardFigures> cards;
  int64_t fed = 0;      // images that threads left to cards
  int64_t feed_ns = 0;  // of decode_ns: planning those, and their coefficients or copying their bytes
  struct BySpeed {
    double card_share = 0;  // aimed at now, of the images that either could make
    double make_ns = 0;     // of a thread, for an image that it makes
    double feed_ns = 0;     // and for one that it leaves to a card, reading and all
  };
  std::optional<BySpeed> by_speed;
  int64_t remade = 0;  // images that a card had and did not make
  // JPEG files of fast jobs that were none for the cards' library, by LibraryMiss; the card's own stages, or the CPU,
  // made them.
  std::array<int64_t, library_misses> library_missed{};

  // Made by threads; of a running executor, too, where cards have some that are not done.
  int64_t cpu_images() const noexcept { return samples - fed + remade; }
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
  // What a card shares (CardLanesOptions::shared_bytes); nullptr: nothing, or no such card.
  virtual CardPieces* pieces(size_t /*card*/) const noexcept { return nullptr; }
};

// `cpus`: hardware threads to run on; empty: leave it to the kernel.
std::unique_ptr<Executor> make_cpu_executor(int threads, const std::vector<int>& cpus);
// Throws Error(runtime) where no card has the memory for a batch. `on_notice` hears, from any thread, of a card that
// failed, or is left out from the beginning, and once of each reason for which images are not left to its library
// though options.library wishes it. `cpu_fraction`: of the images, which threads make though a card would take
// them. Splits of two pipelines say it themselves; by speed, it is of those that are for cards.
std::unique_ptr<Executor> make_card_executor(int threads, const std::vector<int>& cpus,
                                             std::vector<std::unique_ptr<Card>> cards, const CardLanesOptions& options,
                                             std::function<void(const std::string&)> on_notice,
                                             const CpuFraction& cpu_fraction = {});

}  // namespace penstock
