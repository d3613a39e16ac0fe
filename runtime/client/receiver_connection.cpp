#include "runtime/client/receiver_connection.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/host_name.h"
#include "runtime/base/json_text.h"
#include "runtime/base/switches.h"
#include "runtime/client/attach.h"
#include "runtime/client/embedded_place.h"
#include "runtime/process/launcher.h"

namespace penstock {
namespace {

constexpr Nanoseconds kOpeningLimit = 10 * kSecond;  // for a receiver that is about to open
constexpr Nanoseconds kCallbackInterval = 50 * kMillisecond;

bool wants_to_attach(const DataLoaderOptions& options) {
  if (options.attach) return *options.attach;
  const std::string told = environment_value(kAttachVariable);
  if (told.empty() || told == "0") return false;
  if (told == "1") return true;
  throw Error(ErrorKind::usage, std::string(kAttachVariable) + " is '" + told + "'",
              "1: attach to the `penstock serve` of the job on this host; 0: do not (the job's name is name: in its "
              "file)");
}

// Those of the command line of `penstock run` or `serve`, a JSON list, then the program's own.
std::vector<std::string> all_overrides(const std::string& first, const DataLoaderOptions& options) {
  std::vector<std::string> all;
  const auto list = parse_json_or_nothing(first);
  if (list.is_array()) {
    for (const auto& item : list) {
      if (item.is_string()) all.push_back(item.get<std::string>());
    }
  }
  all.insert(all.end(), options.overrides.begin(), options.overrides.end());
  return all;
}

UniqueFd connect_patiently(const std::string& name, const DataLoaderOptions& options) {
  const MonotonicClock clock;
  const Nanoseconds deadline = clock.now() + kOpeningLimit;
  for (;;) {
    try {
      return connect_abstract(name, kCallbackInterval);
    } catch (const Error&) {
      if (clock.now() > deadline) throw;
    }
    if (options.while_waiting) options.while_waiting();
  }
}

ReceiverConnection connect_run(const std::string& receiver, const JobMaker& read, const DataLoaderOptions& options) {
  ReceiverConnection connection;
  connection.origin = ReceiverOrigin::run;
  connection.job = read(all_overrides(environment_value(kOverridesVariable), options));
  UniqueFd fd = connect_patiently(receiver.front() == '@' ? receiver.substr(1) : receiver, options);
  if (!peer_is_us(fd.get())) {
    throw Error(ErrorKind::peer_lost, "the socket in PENSTOCK_RECEIVER belongs to another user",
                "unset PENSTOCK_RECEIVER");
  }
  connection.socket = PacketSocket(std::move(fd));
  handshake(connection.socket, environment_value("PENSTOCK_TOKEN"),
            static_cast<Nanoseconds>(connection.job.trainer.timeout_s * 1e9));
  return connection;
}

}  // namespace

ReceiverConnection connect_receiver(const JobMaker& read, const DataLoaderOptions& options) {
  check_switches();
  if (options.receiver) {
    if (options.rank || options.num_replicas || options.attach.value_or(false)) {
      throw Error(ErrorKind::usage, "a rank that joined a job has its place by that",
                  "leave rank, num_replicas and attach out");
    }
    ReceiverConnection connection;
    connection.origin = ReceiverOrigin::joined;
    connection.job = read(options.overrides);
    connection.host = options.receiver;
    connection.socket = PacketSocket(connection.host->connect());
    return connection;
  }
  if (const std::string receiver = environment_value("PENSTOCK_RECEIVER"); !receiver.empty())
    return connect_run(receiver, read, options);
  ReceiverConnection connection;
  connection.job = read(options.overrides);
  if (!wants_to_attach(options)) return connection;
  connection.origin = ReceiverOrigin::attached;
  ProgramPlace place = program_place(current_environment());
  if (options.rank) place.rank = options.rank;
  if (options.num_replicas) place.world_size = options.num_replicas;
  Attached found =
      attach(serving_name(connection.job), connection.job, place, {options.on_warning, options.while_waiting});
  connection.socket = std::move(found.socket);
  connection.job = read(all_overrides(found.welcome.overrides_json, options));
  return connection;
}

void load_here(ReceiverConnection& connection, const DataLoaderOptions& options) {
  connection.host =
      EmbeddedWorld::shared(connection.job, embedded_place(connection.job, options, current_environment()));
  connection.socket = PacketSocket(connection.host->connect());
}

std::string unused_server(const Job& job, const DataLoaderOptions& options) {
  if (options.attach || !environment_value(kAttachVariable).empty()) return {};  // the program said what it wants
  std::string name;
  try {
    name = serving_name(job);
  } catch (const Error&) {
    return {};  // a job that cannot be served
  }
  if (!is_served(name)) return {};
  return "`penstock serve` of this job ('" + name + "') is running on host " + host_name() +
         ", but this program loads for itself; set PENSTOCK_ATTACH=1 to be fed by it, or 0 to have it so";
}

std::string server_name(ReceiverOrigin origin) {
  if (origin == ReceiverOrigin::embedded || origin == ReceiverOrigin::joined) return {};
  return origin == ReceiverOrigin::attached ? "`penstock serve`" : "`penstock run`";
}

}  // namespace penstock
