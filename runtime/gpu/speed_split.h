// Who makes an image where both could, threads or cards: by speeds learnt while they work.
//
//   SpeedSplit split(threads, cards);
//   const int64_t mine = split.for_cards(64);      // of a chunk of 64, so many images go to cards
//   split.begun(card, images);                     // a batch of them is being gathered for that card
//   split.fed(ns); split.made(ns); split.other(ns);        // a thread's time: feeding a card, making all, no card's image
//   split.done(card, images, ns_of_the_card);      // a batch is back
//   split.lost(card);                              // it is not asked any more
//
// Reasoning: a thread needs `make` for an image that it makes, `feed` for one that it leaves to a card (reading,
//   and copying bytes or entropy decoding), and all cards together make `rate` images a second. With a share s for cards the threads deliver
//   threads / (s * feed + (1 - s) * make), the cards allow rate / s. Where feeding costs less than making, the best s is
//   where both are equal, or 1 where the cards keep up; where feeding costs more, cards are of no use.
// Both are always given a little, so that speeds that change are noticed: one image of 64, less where it would cost more
//   than two per cent, at least one of 1024. An image for a card comes with up to seven others, as launches cost the same
//   for one as for eight; with fewer where a card is so slow that a chunk would wait.
// Determinism: IEEE arithmetic on what it is told, in that order; no clock, no random numbers. It decides who makes an
//   image, and so no byte of it.
// Thread-safety: a plain value; one owner. Failure: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace penstock {

// A mean that follows changes: of the last `span` observations, about. What is more than `furthest` times the mean counts
// as so much: a thread that was held up for a second says little.
class FollowingMean {
 public:
  explicit FollowingMean(double span, double furthest = std::numeric_limits<double>::infinity())
      : span_(span), furthest_(furthest) {}
  void observe(double value);
  bool known() const noexcept { return count_ >= 4; }
  double value() const noexcept { return value_; }

 private:
  double span_;
  double furthest_;
  int64_t count_ = 0;
  double value_ = 0;
};

class SpeedSplit {
 public:
  SpeedSplit(int threads, size_t cards);

  int64_t for_cards(int64_t images);
  // What the batch would wait for on this card, in seconds: to choose one.
  double wait_s(size_t card, int64_t images) const;
  void begun(size_t card, int64_t images);

  void made(int64_t ns);
  void fed(int64_t ns);
  void other(int64_t ns);
  // `images` of those that were begun were wanted, and are there; 0: the batch failed. `card_ns`: of the card, not of the
  // batch, since the last one was back, less what it had nothing to do.
  void done(size_t card, int64_t begun, int64_t images, int64_t card_ns);
  void lost(size_t card);

  double card_share() const;  // of the images that either could make
  double card_images_per_s(size_t card) const;  // 0: not known yet, or lost
  double make_ns() const noexcept { return make_.value(); }
  double feed_ns() const noexcept { return feed_.value(); }

 private:
  struct Speed {
    FollowingMean images{16};
    FollowingMean ns{16};
    int64_t batches = 0;
    int64_t queued = 0;  // images begun and not done
    bool lost = false;
    double images_per_s() const;
  };

  double rate() const;

  double threads_;
  std::vector<Speed> cards_;
  FollowingMean make_{128, 8};
  FollowingMean feed_{128, 8};
  FollowingMean other_{128, 8};
  FollowingMean either_{128};  // 1: either could make it; 0: no card takes it
  double credit_ = 0;          // images that cards are still owed
};

}  // namespace penstock
