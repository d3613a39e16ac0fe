// Where this process stands among the trainers, and what they do together.
//
//   Place place("auto");                        // waits until all are there
//   place.mean(gradients);                      // of all processes' tensors, in place
//   place.leave();                              // at the end, where all went well
//
// RANK, WORLD_SIZE and LOCAL_RANK say it (torchrun and `penstock run` set them), else Slurm's variables; without either
// this is the only one. They meet at MASTER_ADDR and MASTER_PORT.
// How tensors are added up: on GPUs by NCCL, where the program was built with it (CLASSIFIER_WITH_NCCL); on CPUs by
// gloo, where its headers are there (CLASSIFIER_WITH_GLOO; PyPI's torch has none); else through the store at which they
// meet: the same sums, but every process reads everybody's tensors from one of them.
// Thread-safety: one thread at a time, and all processes call the same functions in the same order.
// Failure: penstock::Error for numbers that cannot be, c10::Error where another process is gone.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

class Meeting;  // of several

class Place {
 public:
  // "auto", "cpu", "cuda" or "cuda:1".
  explicit Place(const std::string& device);
  ~Place();  // waits for nobody: after an error the others learn at once that this process is gone
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  bool first() const noexcept { return rank_ == 0; }  // the one that prints and saves
  int rank() const noexcept { return rank_; }
  int world_size() const noexcept { return world_size_; }
  torch::Device device() const noexcept { return device_; }
  bool of_slurm() const noexcept { return of_slurm_; }  // RANK and WORLD_SIZE say nothing of it

  // In place. All have to be of one type and this place's device.
  void sum(std::vector<torch::Tensor> tensors);
  void mean(std::vector<torch::Tensor> tensors);
  void take_from_first(std::vector<torch::Tensor> tensors);
  std::vector<double> totals(const std::vector<double>& numbers);
  // The first process has what they meet at, so it waits here until all others have left, for half a minute at most.
  void leave();

 private:
  int rank_ = 0;
  int world_size_ = 1;
  int local_rank_ = 0;
  bool of_slurm_ = false;
  torch::Device device_ = torch::kCPU;
  std::unique_ptr<Meeting> meeting_;
};
