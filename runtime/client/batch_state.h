// What is behind a Batch (data_loader.h): a batch buffer that the receiver has lent to the program.
//
//   auto form = std::make_shared<const BatchForm>(batch_form(resolved, opened));     // once for a split
//   auto state = std::make_shared<BatchState>(form, lent, give_back);                // for each batch
//   return BatchState::batch_of(state);
//
// Lifetime: copies of a Batch share one BatchState; the last one gives the batch buffer back, by `give_back`, to whoever
//   takes it (the DataLoader's inside) if that is still there. The mapping of the pool outlives both.
// Thread-safety: a batch may be used by one thread at a time, and its last copy dropped in any. Ownership: the batch
// buffer.
// Failure: none; `give_back` must not throw.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/arithmetic.h"
#include "runtime/base/fields.h"
#include "runtime/client/client_session.h"
#include "runtime/job/job.h"
#include "runtime/protocol/client_protocol.h"

namespace penstock {

class Batch;

// What all batches of a split have in common.
struct BatchForm {
  FieldTable fields;
  BatchBufferLayout layout;
  bool channels_last = false;
  Arithmetic arithmetic = Arithmetic::exact;
  std::vector<std::string> shown;  // fields that the program sees: labels that nobody gave are none
  std::string no_labels;           // why there are none: "split 'train' has no labels: …"
};
BatchForm batch_form(const ResolvedSplit& split, const ClientOpened& opened);
// Where it stands among the fields; Error(usage), naming those that the program sees, where it is none of them.
size_t place_of(const BatchForm& form, const std::string& field);
inline FieldKind kind_of(const BatchForm& form, const std::string& field) {
  return form.fields[place_of(form, field)].kind;
}

struct BatchState {
  BatchState(std::shared_ptr<const BatchForm> common, LentBatch batch_buffer, std::function<void()> back)
      : give_back(std::move(back)), form(std::move(common)), lent(std::move(batch_buffer)) {}
  BatchState(const BatchState&) = delete;
  BatchState& operator=(const BatchState&) = delete;
  ~BatchState() { give_back(); }

  static Batch batch_of(std::shared_ptr<BatchState> state);
  static const std::shared_ptr<BatchState>& of(const Batch& batch);  // null: an empty batch

  std::byte* data() const {
    return lent.pool->memory.data() + static_cast<size_t>(lent.info.batch_buffer) * lent.pool->batch_buffer_bytes;
  }

  std::function<void()> give_back;  // the last to be destroyed
  std::shared_ptr<const BatchForm> form;
  LentBatch lent;
};

}  // namespace penstock
