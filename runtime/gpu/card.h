// A card, as far as the loader needs one: memory, copies, the stages of batch_layout.h, and waiting.
//
//   std::unique_ptr<Card> card = open_card(0);                 // cards.h
//   CardBlock memory(*card, bytes, CardMemory::device);
//   std::unique_ptr<CardStream> stream = card->stream();
//   stream->upload(memory.data(), pinned.data(), n);           // in the order of the calls, none of which waits
//   stream->launch(memory.data(), launch);
//   stream->download(pinned.data(), memory.data() + at, m);
//   stream->wait(timeout_ns);                                  // until all of it is done
//   std::unique_ptr<CardShare> ring = card->share(bytes);      // memory that another process opens by ring->fd()
//   std::unique_ptr<CardLink> way = card->link(id, end);       // to a card that is not reached so (card_link.h)
//
// The seam between what is said to a card and how: ../cuda says it with CUDA, host_card.h does it on this CPU, and
//   tests put faults in between. No header of CUDA is seen from here.
// Failure: CardError, with what kind it is: memory is short (ask for less), a call failed, or the card is gone. After
//   `failed` and `lost` the card and its streams are good for nothing but being destroyed; a stream's outcome is
//   unknown.
// Sharing: memory behind a descriptor lives until nobody has it open, mapped or on its way, whoever made it and
//   whatever became of them: what was written before a process died is there for the others. Nothing orders what two
//   processes tell their cards: the one that writes waits for its stream before it says so, the one that reads waits
//   for its own before it gives the memory back. Both are said through the CPU, so there are no events between
//   processes.
// Ownership: blocks, shares and streams must go before their card. A stream that is destroyed waits for what it was
//   told, as the memory it works on goes next; behind `lost` neither waits, and the memory stays until the process
//   ends.
// Thread-safety: a Card from any thread; a stream from one at a time. A call may leave the card current in its thread
//   (CUDA's notion): who uses CUDA there besides puts that right.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/gpu/batch_layout.h"
#include "runtime/gpu/card_link.h"
#include "runtime/gpu/picture_decoder.h"

namespace penstock {

enum class CardFault : uint8_t { out_of_memory, failed, lost };

class CardError : public Error {
 public:
  CardError(CardFault fault, const std::string& message, const std::string& remedy = {})
      : Error(ErrorKind::runtime, message, remedy), fault_(fault) {}
  CardFault fault() const noexcept { return fault_; }

 private:
  CardFault fault_;
};

struct CardInfo {
  int number = 0;    // as the driver counts
  std::string name;  // "NVIDIA H100 80GB HBM3"
  int64_t memory_bytes = 0;
};

enum class CardMemory : uint8_t { device, pinned };  // on the card; here, where copies to and from a card are fast

// What it was asked took, by the card's own clock. Where several streams are at work, a stage's time has what the card
// did for others meanwhile.
struct CardTimes {
  Nanoseconds upload_ns = 0;
  Nanoseconds library_ns = 0;  // a PictureDecoder's work
  std::array<Nanoseconds, card_stages> stage_ns{};
  Nanoseconds download_ns = 0;
  Nanoseconds copy_ns = 0;  // from card memory to card memory

  // To pixels; and all that comes behind.
  Nanoseconds decode_ns() const noexcept {
    Nanoseconds sum = library_ns;
    for (const CardStage stage : {CardStage::entropy, CardStage::sync, CardStage::sum, CardStage::write,
                                  CardStage::inverse, CardStage::colour}) {
      sum += stage_ns[static_cast<size_t>(stage)];
    }
    return sum;
  }
  Nanoseconds augment_ns() const noexcept {
    Nanoseconds sum = library_ns - decode_ns();
    for (const Nanoseconds ns : stage_ns) sum += ns;
    return sum;
  }

  CardTimes& operator+=(const CardTimes& other) {
    upload_ns += other.upload_ns;
    library_ns += other.library_ns;
    for (size_t s = 0; s < card_stages; ++s) stage_ns[s] += other.stage_ns[s];
    download_ns += other.download_ns;
    copy_ns += other.copy_ns;
    return *this;
  }
};

class CardStream {
 public:
  virtual ~CardStream() = default;
  // Memory here must stay as it is until wait() returned.
  virtual void upload(std::byte* to, const std::byte* from, size_t bytes) = 0;
  virtual void launch(std::byte* memory, const StageLaunch& launch) = 0;
  virtual void download(std::byte* to, const std::byte* from, size_t bytes) = 0;
  // From card memory to card memory; one of them may be shared, and so another card's.
  virtual void copy(std::byte* to, const std::byte* from, size_t bytes) = 0;
  // CardError(lost) when the time passes first.
  virtual void wait(Nanoseconds timeout_ns) = 0;
  // Would wait() return at once, or throw? For whoever has something else to look at meanwhile.
  virtual bool done() { return true; }
  // What libraries for such cards know the stream by (a cudaStream_t); nullptr: there is nothing.
  virtual void* native() const noexcept { return nullptr; }
  // Of what was done since the last call; after wait().
  virtual CardTimes take_times() = 0;
  // Error(runtime), with what to do, where there is no such library.
  virtual std::unique_ptr<PictureDecoder> picture_decoder(const PictureDecoderOptions&) {
    throw Error(ErrorKind::runtime, "this card has no library that decodes JPEG files");
  }
};

// Card memory that other processes can have as well; see Sharing, above. A mapping of this process, which ends with it.
class CardShare {
 public:
  virtual ~CardShare() = default;
  virtual std::byte* data() const noexcept = 0;
  virtual size_t bytes() const noexcept = 0;  // at least what was asked for
  virtual int fd() const noexcept = 0;        // the share's; -1: it was opened
};

class Card {
 public:
  virtual ~Card() = default;
  virtual const CardInfo& info() const noexcept = 0;
  virtual std::byte* allocate(size_t bytes, CardMemory where) = 0;
  virtual void release(std::byte* memory, CardMemory where) noexcept = 0;
  virtual std::unique_ptr<CardStream> stream() = 0;
  // In a stream that somebody else has made on this card and keeps (a cudaStream_t, of torch say): what it is told is
  // ordered with theirs, and wait() waits for both, as does its end: theirs must outlive it. Cards without such streams
  // make one of their own.
  virtual std::unique_ptr<CardStream> stream_on(void* /*theirs*/) { return stream(); }
  // Error(runtime), with what to do, where memory of this card cannot be shared.
  virtual std::unique_ptr<CardShare> share(size_t bytes) = 0;
  // What another process has shared, to be read by this card, which may be another: `bytes` are its bytes(). The
  // descriptor is the call's, whatever comes of it. Error(runtime) where this card does not reach it.
  virtual std::unique_ptr<CardShare> open_share(UniqueFd fd, size_t bytes) = 0;
  // Which card it is, of all machines'; the same in every process. Empty: nobody knows.
  virtual std::string identity() const { return {}; }
  // Error(runtime), with what to do, where there is nothing that links cards; why_no_links() says it before.
  virtual std::string link_id() { throw Error(ErrorKind::runtime, why_no_links()); }
  virtual std::unique_ptr<CardLink> link(const std::string& /*id*/, LinkEnd /*end*/) {
    throw Error(ErrorKind::runtime, why_no_links());
  }
  virtual std::string why_no_links() const { return "this card has no library that links it to others"; }
};

// Owned memory of a card.
class CardBlock {
 public:
  CardBlock(Card& card, size_t bytes, CardMemory where)
      : card_(&card), where_(where), data_(card.allocate(bytes, where)) {}
  CardBlock(CardBlock&& other) noexcept
      : card_(other.card_), where_(other.where_), data_(std::exchange(other.data_, nullptr)) {}
  CardBlock& operator=(CardBlock&&) = delete;
  ~CardBlock() {
    if (data_ != nullptr) card_->release(data_, where_);
  }
  std::byte* data() const noexcept { return data_; }

 private:
  Card* card_;
  CardMemory where_;
  std::byte* data_;
};

}  // namespace penstock
