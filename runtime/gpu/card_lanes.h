// Batches on their way through cards: several at a time, each in a lane with memory and a stream of its own.
//
//   CardLanes lanes(open_cards(choice), options, done);     // done(lane, error): see below
//   if (CardLane* lane = lanes.take()) {                    // nullptr: all are busy, or no card is left
//     lane->batch.begin(...); reserve and fill; lane->images.push_back({number, where the image goes});
//     lanes.submit(*lane);                                  // seals, copies, launches, waits, in the lane's thread
//   }
//   ...                                                     // in done(): images that are `made` are there, or error is set
//   lanes.give_back(*lane);
//
// States of a lane: free → take() → the taker's → submit() → its thread's → done() → the taker's → give_back() → free.
//   Only the one whose it is touches it; take(), submit() and done() hand it over with all that was written.
// Memory: options.memory_bytes a card, in parts for its lanes (equal, unless memory was short), and pinned memory of
//   three quarters of that here. Where a card has less, the lanes are halved until they fit, so that batches become
//   smaller; a card on which not even smallest_lane_bytes can be had is left out, and one that fails meanwhile is too.
//   figures() says so from the beginning.
// Failure: the constructor throws where no card is left, or threads cannot be had. done()'s error says which card
//   failed and how; what the batch held is then unmade. After anything but a want of memory the card is not asked
//   again: its lanes are never free.
// A card's library (picture_decoder.h), where options.library asks for it: each lane has a decoder, and the lanes of
//   that card three quarters of its memory, the library the rest. Where a card has none, or it fails, figures() says
//   why, and its lanes go on without: pictures planned for it come back unmade, of which refused tells how many, and
//   why.
// Sharing, where options.shared_bytes asks for it: a LaneImage may name a place in pieces(card) of its lane's card, and
//   the image is there too when it is `made`, or there alone, with its hash here. Where a card shares nothing figures()
//   says why, and all else is as without.
// Waiting: a batch that a card has not finished by options.timeout_ns counts as lost. With options.duty below 1 a card
//   has one batch at a time, and rests behind each; takers find its lanes busy meanwhile, and its speed is what is
//   left.
// Thread-safety: all from any thread; done() is called by lanes' threads. stop(), and so the destructor, waits for
//   batches under way; done() may still use the lanes then.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/hash.h"
#include "runtime/base/thread_annotations.h"
#include "runtime/gpu/batch_builder.h"
#include "runtime/gpu/card.h"
#include "runtime/gpu/card_pieces.h"
#include "runtime/gpu/duty_cycle.h"

namespace penstock {

inline constexpr size_t smallest_lane_bytes = size_t{1} << 20;

struct CardLanesOptions {
  int64_t memory_bytes = int64_t{512} << 20;  // of a card
  int lanes = 3;                              // of a card: one being filled, one being made, one being fetched
  Nanoseconds timeout_ns = 10 * kSecond;
  double duty = 1;  // of a card's time (duty_cycle.h)
  std::optional<ChromaUpsampling> library;  // jobs of arithmetic `fast`
  CardEntropy entropy;  // what takers of lanes leave to cards
  int64_t shared_bytes = 0;  // of a card, besides memory_bytes: for images that other processes read; 0: none
};

// Of a card's library (picture_decoder.h), so far.
struct CardLibraryFigures {
  PictureDecoderFacts facts;  // name: empty: the card has none
  std::string failure;        // why it is not used, or no more
  int64_t images = 0;
  std::array<int64_t, refusals> refused{};
};

// Of what a card lends to other processes, so far.
struct CardSharedFigures {
  int64_t bytes = 0;
  std::string failure;  // why there is none
  CardPieces::Figures pieces;
};

// Of one card, so far.
struct CardFigures {
  std::string name;
  int number = 0;
  int64_t memory_bytes = 0;  // taken from it
  int lanes = 0;
  int64_t batches = 0;
  int64_t images = 0;
  int64_t uploaded_bytes = 0;
  int64_t busy_ns = 0;     // of its lanes, from upload to the last byte fetched
  int64_t active_ns = 0;   // with a batch of one lane at least
  CardTimes times;         // of those batches, by stage
  int64_t deliver_ns = 0;  // of its lanes, from pinned memory to where images go
  std::string failure;     // why it is not asked any more, or never was
  std::optional<CardLibraryFigures> library;  // where it was asked for
  std::optional<CardSharedFigures> shared;    // the same
};

struct LaneImage {
  size_t sample = 0;
  std::byte* image = nullptr;  // nullptr: not wanted any more
  std::byte* shared = nullptr;  // card memory that has it as well, once it is back; nullptr: none
  bool stays = false;           // and `image` does not get it, but `digest` its hash (BatchBuilder::set_record())
  Sum128 digest;
  bool made = false;           // once it is back; else the CPU has to make it
};

struct CardLane {
  CardLane(Card& on, size_t number_of_card, size_t bytes);

  size_t card;
  size_t memory_bytes;
  CardBlock memory;
  CardBlock upload;
  CardBlock outputs;
  std::unique_ptr<CardStream> stream;       // goes before the memory that it works on
  std::unique_ptr<PictureDecoder> decoder;  // nullptr: none; goes before the stream
  BatchBuilder batch;
  std::vector<LaneImage> images;  // by place
  size_t most_outputs(size_t bytes_each) const noexcept { return memory_bytes / 4 / bytes_each; }

  // The taker's own.
  void* owner = nullptr;
  size_t pending = 0;
  bool closed = false;
  // Images that are.
  int64_t wanted() const noexcept;

  // From the lane's thread, for done().
  // The card's: since its batch before this one was back, or since it had nothing to do; its rests too.
  Nanoseconds card_ns = 0;
  Nanoseconds deliver_ns = 0;
  CardTimes times;
  std::array<int64_t, refusals> refused{};  // pictures that were planned for the library
  int64_t library_images() const noexcept;  // made
};

class CardLanes {
 public:
  using Done = std::function<void(CardLane& lane, const CardError* error)>;

  CardLanes(std::vector<std::unique_ptr<Card>> cards, const CardLanesOptions& options, Done done);
  ~CardLanes();

  // Of the free lanes, one of the card where `wait` is least; without it they take turns.
  CardLane* take(const std::function<double(size_t card)>& wait = {});
  void submit(CardLane& lane);
  void give_back(CardLane& lane);
  void stop();
  std::vector<CardFigures> figures() const;
  // While any card's library is of use: what all of those can do.
  std::optional<LibraryOffer> library() const;
  // Of a lane that the caller has.
  bool has_library(const CardLane& lane) const;
  // nullptr: that card shares nothing.
  CardPieces* pieces(size_t card) const noexcept { return pieces_[card].get(); }

 private:
  struct Place {
    std::unique_ptr<CardLane> lane;
    bool free = true;
    bool submitted = false;
  };

  std::optional<PictureDecoderOptions> find_library(size_t card, const CardLanesOptions& options)
      PENSTOCK_REQUIRES(mutex_);
  void add_lanes(size_t card, const CardLanesOptions& options) PENSTOCK_REQUIRES(mutex_);
  void run(size_t place);
  void begin_batch(size_t card) PENSTOCK_REQUIRES(mutex_);
  void await_turn(size_t card) PENSTOCK_REQUIRES(mutex_);
  void end_batch(CardLane& lane, Nanoseconds begun) PENSTOCK_REQUIRES(mutex_);
  std::optional<CardError> attempt(CardLane& lane) const;
  void make(CardLane& lane) const;
  static void decode_pictures(CardLane& lane);
  static void copy_shared(CardLane& lane);
  static void download(CardLane& lane);
  bool library_of(size_t card) const PENSTOCK_REQUIRES(mutex_);

  void add_pieces(size_t card) PENSTOCK_REQUIRES(mutex_);

  std::vector<std::unique_ptr<Card>> cards_;
  std::vector<std::unique_ptr<CardPieces>> pieces_;  // of each card; behind the lanes that write there
  CardLanesOptions options_;
  Done done_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Place> places_ PENSTOCK_GUARDED_BY(mutex_);
  std::vector<CardFigures> figures_ PENSTOCK_GUARDED_BY(mutex_);
  struct Activity {
    int batches = 0;        // under way
    Nanoseconds since = 0;  // counted so far
  };
  std::vector<Activity> activity_ PENSTOCK_GUARDED_BY(mutex_);  // of each card
  std::vector<DutyCycle> duty_ PENSTOCK_GUARDED_BY(mutex_);     // of each card
  size_t next_ PENSTOCK_GUARDED_BY(mutex_) = 0;                 // where take() begins to look: lanes take turns
  bool stopping_ PENSTOCK_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace penstock
