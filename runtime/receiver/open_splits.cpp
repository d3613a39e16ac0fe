#include "runtime/receiver/open_splits.h"

#include "runtime/base/error.h"

namespace penstock {

void OpenSplits::open(int connection, const ClientOpen& message) {
  const int32_t id = next_++;
  ReceiverSplit split;
  try {
    split = split_of(message);
  } catch (const Error& error) {
    messenger_.to_client(connection, ClientRefused{error.exit_code(), error.message(), error.remedy()});
    return;
  }
  split.id = id;
  split.connection = connection;
  const std::string& name = split.resolved.name;
  if (const ReceiverSplit* other = fed_to_another(connection, name)) {
    messenger_.to_client(
        connection, ClientRefused{static_cast<int32_t>(ErrorKind::usage),
                                  "the receiver of trainer " + std::to_string(options_.trainer) +
                                      (options_.host.empty() ? "" : " on host " + options_.host) + " feeds split '" +
                                      name + "' to process " + std::to_string(clients_.pid(other->connection)) +
                                      ", and process " + std::to_string(clients_.pid(connection)) + " opens it too",
                                  "end that process first; two trainers need a LOCAL_RANK each (torchrun sets it)"});
    return;
  }
  split.process = clients_.program(connection);
  split.program = options_.serving ? split.process : 0;
  if (options_.serving && attached_.insert(split.program).second) note_program(clients_.pid(connection), "attached");
  split.opening = openings_[{split.program, name}]++;
  messenger_.to_coordinator(
      OpenSplit{message.json, options_.replica, options_.num_replicas, split.program, split.opening, split.id});
  splits_.emplace(id, std::move(split));
}

const ReceiverSplit* OpenSplits::fed_to_another(int connection, const std::string& name) const {
  for (const auto& [id, other] : splits_) {
    if (other.resolved.name == name && clients_.program(other.connection) != clients_.program(connection) &&
        clients_.living(other.connection)) {
      return &other;
    }
  }
  return nullptr;
}

void OpenSplits::opened(const SplitOpened& message) {
  const auto it = splits_.find(message.split);
  if (it == splits_.end() || it->second.opened) return;
  const ClientOpened answer = complete(it->second, message, options_.replica, options_.num_replicas);
  messenger_.to_client(it->second.connection, answer);
}

void OpenSplits::refused(const SplitRefused& message) {
  const auto it = splits_.find(message.split);
  if (it == splits_.end() || it->second.opened) return;
  messenger_.to_client(it->second.connection, ClientRefused{message.error_kind, message.error, message.remedy});
  splits_.erase(it);
}

void OpenSplits::program_changed(int64_t number, int pid, bool came, int32_t living) {
  if (!options_.serving) return;
  if (!came) std::erase_if(openings_, [&](const auto& item) { return item.first.first == number; });
  messenger_.to_coordinator(ProgramsAt{living});
  if (!came && attached_.erase(number) != 0) note_program(pid, "is gone");
}

void OpenSplits::note_program(int pid, const std::string& what) const {
  if (!programs_noted_) return;
  messenger_.notice((pid > 0 ? "process " + std::to_string(pid) : "a program") + " " + what);
}

std::vector<int32_t> OpenSplits::of(int connection) const {
  std::vector<int32_t> ids;
  for (const auto& [id, split] : splits_) {
    if (split.connection == connection) ids.push_back(id);
  }
  return ids;
}

void OpenSplits::close(int32_t id) {
  const auto it = splits_.find(id);
  if (it == splits_.end()) return;
  messenger_.to_coordinator(SplitClosed{it->second.fingerprint, false, id});
  splits_.erase(it);
}

const ReceiverSplit* OpenSplits::find_opened(int32_t id) const {
  const auto it = splits_.find(id);
  return it == splits_.end() || !it->second.opened ? nullptr : &it->second;
}

}  // namespace penstock
