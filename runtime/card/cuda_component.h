// The seam between penstock and its CUDA component (libpenstock_cuda.so), which is loaded at run time: nothing else in
// the project links CUDA or sees its headers, so one build of everything else serves machines with and without cards.
//
//   int n = cuda_cards();                               // loads it; Error where there is none, or no driver
//   std::unique_ptr<Card> card = open_cuda_card(0);
//
// It is looked for beside the library (or program) that this is in, then in the system's folders; ../cuda is its
// source. Failure: Error(runtime): not built, no driver, no such card; with what to do.
// Thread-safety: from any thread. The component stays loaded.
#pragma once

#include <memory>
#include <string>

#include "runtime/card/card.h"

namespace penstock {

// The component's one entry point, found by name.
struct CudaComponent {
  int version = 0;
  // -1, and why.
  int (*count)(std::string* error) = nullptr;
  // nullptr, and why.
  Card* (*open)(int number, std::string* error) = nullptr;
};
inline constexpr int kCudaComponentVersion = 1;  // of this struct, Card and batch_layout.h together
inline constexpr const char* kCudaComponentEntry = "penstock_cuda_component";
using CudaComponentFunction = const CudaComponent* (*)();

int cuda_cards();
std::unique_ptr<Card> open_cuda_card(int number);

}  // namespace penstock
