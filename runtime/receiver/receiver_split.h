// A split as a receiver knows it: what one client opened, with the finishing that this client wants.
//
//   ReceiverSplit split = split_of(client_open);                      // Error(config) where it cannot be
//   ClientOpened answer = complete(split, split_opened, 0, 1);        // the coordinator knows the dataset: SplitOpened
//   split.finisher->run(…);                                           // chunks of it may come (chunk_intake.h)
//
//   described --complete()--> opened        Before `opened` is true there is no shape, plan, or field besides image and
//                                           label, and no iteration begins.
//
// Thread-safety: the receiver's event loop alone. Ownership: plain data. Failure: split_of() throws Error(config) for a
//   description, transform or dtype that cannot be, complete() as plan_shape() does.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/base/clock.h"
#include "runtime/base/fields.h"
#include "runtime/job/job.h"
#include "runtime/pixels/finish.h"
#include "runtime/protocol/client_protocol.h"
#include "runtime/protocol/messages.h"
#include "runtime/transforms/pipeline.h"
#include "runtime/transforms/variants.h"
#include "sampler/plan.h"

namespace penstock {

struct ReceiverSplit {
  int32_t id = 0;
  int connection = 0;
  int64_t program = 0;  // as the coordinator compares them (protocol/messages.h)
  int64_t process = 0;  // the program's number at the receiver (client_connections.h)
  int32_t opening = 0;
  Fingerprint fingerprint = 0;
  ResolvedSplit resolved;
  std::optional<Variants> variants;
  FieldTable raw_fields;  // as chunks carry them
  FieldTable fields;      // as delivered
  bool raw_images = false;
  bool gpu_images = false;           // the client reads them on GPUs where they are there; mixing does not
  FinishSpec finish;                 // that the program wants
  FinishSpec delivered;              // the same, or images as they are where the client finishes them
  std::optional<Finisher> finisher;  // to that
  PlanSpec shape;
  PlanShape plan;
  Nanoseconds longest_wait_ns = 0;  // after which the program gives up; 0: never
  bool opened = false;              // the coordinator knows the dataset's size

  const Pipeline& pipeline() const noexcept { return variants->shared(); }

  // Unreadable samples of an evaluation are masked instead of failing the job.
  bool masks_bad_samples() const noexcept {
    return resolved.split.mode == Mode::eval && resolved.on_error == OnError::substitute;
  }
};

// From its description and what the client asks for. Number, connection and program are the caller's to say.
ReceiverSplit split_of(const ClientOpen& message);

// What the dataset turned out to hold, and what the client is sent of it.
ClientOpened complete(ReceiverSplit& split, const SplitOpened& opened, int32_t replica, int32_t num_replicas);

// The plan of one iteration over it; and is it right that it has, or has not, an order of its own? Error(usage) where
// not.
PlanShape plan_of(const ReceiverSplit& split, const ClientIterate& iteration);

}  // namespace penstock
