// The one error type of the library, and the status of a sample.
//
//   throw Error(ErrorKind::dataset, "cannot open '" + path + "': " + why, "check the path and its permissions");
//
// Purpose: the first function that knows an error reports it, with names (file, rank, key) and a remedy; callers pass
//   it on unchanged. The kind is also the exit code of the `penstock` program, so scripts can tell a typo in a job file
//   (3) from a lost loader (5).
// What is *not* an Error: a bad sample. Whether one image decodes is an answer, not a failure, so it travels as a
//   SampleStatus; only the job's `on_error` turns it into an Error, at the batch where the program would have met it.
// Thread-safety: values; copy freely.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace penstock {

enum class ErrorKind : int {
  runtime = 1,    // the environment: I/O, memory, a system call, a program that failed
  usage = 2,      // the caller: wrong arguments, wrong order of calls
  config = 3,     // the job file or an override
  dataset = 4,    // missing or empty data, or a bad sample under on_error: fail
  peer_lost = 5,  // a rank, receiver or program that this one needs is gone or silent
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, std::string remedy = {})
      : std::runtime_error(remedy.empty() ? message : message + "\n  help: " + remedy),
        kind_(kind),
        message_(message),
        remedy_(std::move(remedy)) {}

  ErrorKind kind() const noexcept { return kind_; }
  int exit_code() const noexcept { return static_cast<int>(kind_); }
  const std::string& message() const noexcept { return message_; }  // without the remedy
  const std::string& remedy() const noexcept { return remedy_; }    // may be empty

 private:
  ErrorKind kind_;
  std::string message_;
  std::string remedy_;
};

// The answer to "is this sample usable?": a pure function of the sample's bytes and draws, so every executor, run and
// machine gives the same one. `reason` is empty exactly when the sample is good.
struct SampleStatus {
  std::string reason;

  static SampleStatus good() { return {}; }
  static SampleStatus bad(std::string why) { return {std::move(why)}; }
  bool ok() const noexcept { return reason.empty(); }
};

}  // namespace penstock
