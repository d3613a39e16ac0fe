#include "launch/parquet_data.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/json_text.h"
#include "runtime/datasets/containers.h"
#include "runtime/datasets/python_workers.h"
#include "runtime/process/worker_process.h"

namespace penstock {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxLine = size_t{16} << 20;  // a million class names
constexpr size_t kTail = 2000;
constexpr double kGrace_s = 2;

// The process, its lines, and the end of what it printed.
class Copier {
 public:
  explicit Copier(const PythonSpec& python)
      : wait_limit_s_(python.start_timeout_s),
        process_(
            WorkerProcess::start({python_interpreter(python), python_script("_parquet.py")}, worker_environment())) {}

  void send(const std::string& line) {
    for (size_t done = 0; done < line.size();) {
      const ssize_t sent = ::send(process_.socket(), line.data() + done, line.size() - done, MSG_NOSIGNAL);
      if (sent > 0) {
        done += static_cast<size_t>(sent);
      } else if (errno == EAGAIN) {
        wait(POLLOUT);
      } else if (errno != EINTR) {
        lost();
      }
    }
  }

  std::string line() {
    for (;;) {
      if (const size_t end = pending_.find('\n', searched_); end != std::string::npos) {
        std::string out = pending_.substr(0, end);
        pending_.erase(0, end + 1);
        searched_ = 0;
        return out;
      }
      searched_ = pending_.size();
      if (pending_.size() > kMaxLine) lost("said more than 16 MiB at once");
      char buffer[65536];
      const ssize_t got = ::recv(process_.socket(), buffer, sizeof buffer, 0);
      if (got > 0) {
        pending_.append(buffer, static_cast<size_t>(got));
      } else if (got < 0 && errno == EAGAIN) {
        wait(POLLIN);
      } else if (got == 0 || errno != EINTR) {
        lost();
      }
    }
  }

  [[noreturn]] void lost(const std::string& how = {}) {
    drain();
    const std::string said = tail_.empty() ? std::string() : "; it said last:\n" + tail_;
    const std::string ended = process_.end(how.empty() ? kGrace_s : 0);
    throw Error(ErrorKind::runtime,
                "the Python process that reads Parquet files " + (how.empty() ? ended : how) + said);
  }

 private:
  void wait(short events) {
    const MonotonicClock clock;
    const Nanoseconds deadline = clock.now() + static_cast<Nanoseconds>(wait_limit_s_ * 1e9);
    for (;;) {
      const Nanoseconds left = deadline - clock.now();
      if (left <= 0)
        lost("gave no sign of life for " + std::to_string(static_cast<int64_t>(wait_limit_s_)) +
             " s (python.start_timeout_s)");
      pollfd fds[] = {{process_.socket(), events, 0}, {output_open_ ? process_.output() : -1, POLLIN, 0}};
      (void)::poll(fds, 2, static_cast<int>(std::min<Nanoseconds>(left / kMillisecond + 1, 1000)));
      if (fds[1].revents != 0) drain();
      if ((fds[1].revents & POLLHUP) != 0) output_open_ = false;
      if (fds[0].revents != 0) return;
    }
  }

  void drain() {
    char buffer[4096];
    for (ssize_t got = 0; (got = ::read(process_.output(), buffer, sizeof buffer)) > 0;) {
      tail_.append(buffer, static_cast<size_t>(got));
      if (tail_.size() > kTail) tail_.erase(0, tail_.size() - kTail);
    }
  }

  double wait_limit_s_;
  WorkerProcess process_;
  std::string pending_;
  size_t searched_ = 0;
  std::string tail_;
  bool output_open_ = true;
};

struct Copied {
  std::vector<std::string> kinds;  // of the fields: "text", "bytes", "" for numbers
  bool labelled = false;
  std::vector<std::string> classes;
};

// Has the archive written.
Copied have_it_copied(Copier& copier, const Json& request) {
  copier.send(json_text_replacing(request) + "\n");
  for (;;) {
    const std::string line = copier.line();
    try {
      const Json message = parse_json(line);
      if (message.contains("rows")) continue;
      if (message.contains("error")) {
        throw Error(message.at("dataset").get<bool>() ? ErrorKind::dataset : ErrorKind::runtime,
                    message.at("error").get<std::string>(), message.at("help").get<std::string>());
      }
      return {message.at("fields").get<std::vector<std::string>>(), message.at("label").get<bool>(),
              message.at("classes").get<std::vector<std::string>>()};
    } catch (const Json::exception&) {
      copier.lost("said something else than was agreed: " + line.substr(0, 200));
    }
  }
}

// "3/17": row 17 of the fourth file.
std::string key_of(std::string_view member, const std::vector<TableFile>& sources) {
  const size_t slash = std::min(member.find('/'), member.size());
  int64_t file = -1;
  if (!integer_of(member.substr(0, slash), file) || file < 0 || file >= static_cast<int64_t>(sources.size()) ||
      slash == member.size()) {
    throw Error(ErrorKind::runtime,
                "the archive of the samples has a member '" + std::string(member.substr(0, 60)) + "'");
  }
  return sources[static_cast<size_t>(file)].path + "[" + std::string(member.substr(slash + 1)) + "]";
}

// What the archive holds, as a table of its own kind.
SampleTable table_of(const std::string& archive, const DatasetSpec& dataset, const Copied& copied,
                     const DecodeLimits& limits, const std::vector<TableFile>& sources, const std::string& final_path) {
  const std::vector<FieldRequest> asked = field_requests(dataset);
  if (copied.kinds.size() != asked.size())
    throw Error(ErrorKind::runtime, "the archive of the samples has other fields than were asked for");
  DatasetSpec inner;
  inner.tar = archive;
  inner.image = "img";
  for (size_t i = 0; i < asked.size(); ++i) {
    inner.fields += (i == 0 ? "f" : ",f") + std::to_string(i) + (copied.kinds[i].empty() ? "" : ":" + copied.kinds[i]);
  }
  ShardFiles shards(posix_file_system(), 0);
  const SampleTable listed = list_tar({inner, shards, posix_file_system(), limits.max_encoded_bytes});

  TableBuilder table("parquet");
  TableFile data = listed.facts().files.at(0);
  data.path = final_path;
  table.add_file(std::move(data));
  for (const TableFile& source : sources) table.add_file(source);
  for (size_t i = 0; i < asked.size(); ++i) {
    FieldSpec field = listed.facts().fields[i];
    field.name = asked[i].name;
    table.add_field(std::move(field));
  }
  table.facts().labelled = copied.labelled;
  table.facts().classes = copied.classes;
  table.facts().options = container_options(dataset);
  for (int64_t i = 0; i < listed.size(); ++i) {
    const SampleRow& row = listed.row(i);
    table.add(key_of(listed.key(i), sources), row.label, 0, row.offset, row.bytes);
    for (size_t field = 0; field < asked.size(); ++field) {
      const FieldPlace& place = listed.place(field, i);
      table.place(field, 0, place.offset, place.bytes);
    }
  }
  return table.finish();
}

}  // namespace

SampleTable copy_parquet(const DatasetSpec& dataset, const std::string& index, const PythonSpec& python,
                         const DecodeLimits& limits) {
  const std::string data = std::filesystem::absolute(index).lexically_normal().string() + ".data";
  const std::string fresh = data + ".new";
  if (data.find_first_of("{}*?") != std::string::npos) {
    throw Error(ErrorKind::usage, "the index of Parquet files cannot be called '" + index + "'", "leave out { } * ?");
  }
  const std::string root = container_root(dataset);
  Json request = {{"files", Json::array()},
                  {"image", dataset.image},
                  {"label", dataset.label},
                  {"fields", Json::array()},
                  {"data", fresh}};
  std::vector<TableFile> sources;
  // Before they are read: a file that changes meanwhile makes the index old, not wrong.
  for (const std::string& path : container_files(dataset, posix_file_system())) {
    const FileFacts facts = posix_file_system().examine(path);
    request["files"].push_back(path);
    sources.push_back({relative_to(root, path), facts.bytes, facts.modified_ns, Codec::none, facts.bytes});
  }
  for (const FieldRequest& field : field_requests(dataset)) {
    request["fields"].push_back({field.name, !field.has_kind ? "" : field.kind == FieldKind::text ? "text" : "bytes"});
  }
  Copier copier(python);  // as long as it lives the archive is locked
  const Copied copied = have_it_copied(copier, request);
  try {
    SampleTable table = table_of(fresh, dataset, copied, limits, sources, relative_to(root, data));
    std::filesystem::rename(fresh, data);
    return table;
  } catch (const std::filesystem::filesystem_error& error) {
    ::unlink(fresh.c_str());
    throw Error(ErrorKind::runtime, "cannot rename '" + fresh + "': " + error.code().message());
  } catch (...) {
    ::unlink(fresh.c_str());
    throw;
  }
}

}  // namespace penstock
