// A client's questions that the receiver answers at once and in order (all but those for next batches), and their
// answers.
//
//   const uint64_t question = questions.ask();                     // it has just been said
//   if (auto answer = questions.take(question)) return *answer;    // somebody received it meanwhile
//   if (auto left = questions.arrived({message, fd})) ...          // any such answer, whoever received it
//   if (auto left = questions.abandon(question)) ...               // its asker was interrupted
//
// The states of one question:
//
//   asked --arrived()--> answered --take()--> gone
//     '--abandon()--> abandoned --arrived(), which gives it back--> gone      What to undo is the caller's to say.
//   abandon() of one that is answered, by another thread's receiving, gives it back at once.
//
// Invariant: answers belong to questions in the order of asking, as the receiver has one loop and answers before it
//   hears on; but for the opening of a split, which is asked alone.
// Thread-safety: none; ClientSession guards it. Ownership: answers, and descriptors that came with them. Failure: none.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "runtime/base/memory.h"
#include "runtime/protocol/client_protocol.h"

namespace penstock {

struct ReceiverAnswer {
  ClientMessage message;
  UniqueFd fd;
};

class QuestionQueue {
 public:
  uint64_t ask() {
    asked_.push_back({++last_, false, std::nullopt});
    return last_;
  }
  bool waiting() const noexcept { return first_unanswered() != asked_.end(); }

  // To the oldest question without one. Given back where its asker has gone. waiting() is true.
  std::optional<ReceiverAnswer> arrived(ReceiverAnswer answer) {
    const auto it = asked_.begin() + (first_unanswered() - asked_.begin());
    if (it->abandoned) {
      asked_.erase(it);
      return answer;
    }
    it->answer = std::move(answer);
    return std::nullopt;
  }
  std::optional<ReceiverAnswer> take(uint64_t question) {
    for (auto it = asked_.begin(); it != asked_.end(); ++it) {
      if (it->number != question || !it->answer) continue;
      std::optional<ReceiverAnswer> answer = std::move(it->answer);
      asked_.erase(it);
      return answer;
    }
    return std::nullopt;
  }
  // Its answer, where it has one already.
  std::optional<ReceiverAnswer> abandon(uint64_t question) {
    if (auto answer = take(question)) return answer;
    for (Question& one : asked_) one.abandoned = one.abandoned || one.number == question;
    return std::nullopt;
  }

 private:
  struct Question {
    uint64_t number = 0;
    bool abandoned = false;
    std::optional<ReceiverAnswer> answer;
  };
  std::deque<Question>::const_iterator first_unanswered() const noexcept {
    auto it = asked_.begin();
    while (it != asked_.end() && it->answer) ++it;
    return it;
  }

  std::deque<Question> asked_;
  uint64_t last_ = 0;
};

}  // namespace penstock
