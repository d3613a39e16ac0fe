// Where this process stands among the trainers, and what they do together.
//
//   Place place("auto");                        // waits until all are there
//   place.mean(gradients);                      // of all processes' tensors, in place
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
  ~Place();
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  bool first() const noexcept { return rank_ == 0; }  // the one that prints and saves
  int rank() const noexcept { return rank_; }
  int world_size() const noexcept { return world_size_; }
  torch::Device device() const noexcept { return device_; }

  // In place. All have to be of one type and this place's device.
  void sum(std::vector<torch::Tensor> tensors);
  void mean(std::vector<torch::Tensor> tensors);
  void take_from_first(std::vector<torch::Tensor> tensors);
  std::vector<double> totals(const std::vector<double>& numbers);

 private:
  void sum_flat(torch::Tensor& flat);

  int rank_ = 0;
  int world_size_ = 1;
  int local_rank_ = 0;
  torch::Device device_ = torch::kCPU;
  std::unique_ptr<Meeting> meeting_;
};
