// Decides whether threads or GPUs make an image that both could: by speeds learned while they work.
//
//   SpeedSplit split(threads, gpus);
//   const int64_t mine = split.for_gpus(64);       // of a chunk of 64, so many images go to GPUs
//   split.begun(gpu, images);                      // a batch of them is being gathered for that GPU
//   // a thread's time: feeding a GPU, making all, no GPU's image
//   split.fed(ns); split.made(ns); split.other(ns);
//   split.done(gpu, images, ns_of_the_gpu);        // a batch is back
//   split.lost(gpu);                               // it is not asked any more
//
// Reasoning: a thread needs `make` for an image that it makes, `feed` for one that it leaves to a GPU (reading,
//   and copying bytes or entropy decoding), and all GPUs together make `rate` images a second. With a share s for GPUs
//   the threads deliver threads / (s * feed + (1 - s) * make), the GPUs allow rate / s. Where feeding costs less than
//   making, the best s is where both are equal, or 1 where the GPUs keep up; where feeding costs more, GPUs are of no
//   use.
// Both are always given a little, so that speeds that change are noticed: one image of 64, less where it would cost
//   more than two per cent, at least one of 1024. An image for a GPU comes with up to seven others, as launches cost
//   the same for one as for eight; with fewer where a GPU is so slow that a chunk would wait.
// Determinism: IEEE arithmetic on what it is told, in that order; no clock, no random numbers. It decides who makes an
//   image, and so no byte of it.
// Thread-safety: a plain value; one owner. Failure: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace penstock {

// A mean that follows changes: of the last `span` observations, about. What is more than `furthest` times the mean
// counts as so much: a thread that was held up for a second says little.
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
  SpeedSplit(int threads, size_t gpus);

  int64_t for_gpus(int64_t images);
  // What the batch would wait for on this GPU, in seconds: to choose one.
  double wait_s(size_t gpu, int64_t images) const;
  void begun(size_t gpu, int64_t images);

  void made(int64_t ns);
  void fed(int64_t ns);
  void other(int64_t ns);
  // `images` of those that were begun were wanted, and are there; 0: the batch failed. `gpu_ns`: of the GPU, not of the
  // batch, since the last one was back, less what it had nothing to do.
  void done(size_t gpu, int64_t begun, int64_t images, int64_t gpu_ns);
  void lost(size_t gpu);

  double gpu_share() const;                   // of the images that either could make
  double gpu_images_per_s(size_t gpu) const;  // 0: not known yet, or lost
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
  std::vector<Speed> gpus_;
  FollowingMean make_{128, 8};
  FollowingMean feed_{128, 8};
  FollowingMean other_{128, 8};
  FollowingMean either_{128};  // 1: either could make it; 0: no GPU takes it
  double credit_ = 0;          // images that GPUs are still owed
};

}  // namespace penstock
