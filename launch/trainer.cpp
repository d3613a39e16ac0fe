#include "launch/trainer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "launch/end_channel.h"
#include "launch/profile_command.h"
#include "runtime/base/error.h"
#include "runtime/base/host_name.h"
#include "runtime/base/json_text.h"
#include "runtime/client/attach.h"
#include "runtime/client/data_loader.h"
#include "runtime/embedded/embedded.h"
#include "runtime/process/launcher.h"
#include "runtime/process/tree.h"
#include "runtime/ranks/rank_endpoint.h"
#include "runtime/report/report.h"
#include "transport/unix_socket.h"

namespace penstock {
namespace {

std::vector<std::string> program_of(const RunRequest& request) {
  if (!request.program.empty()) return request.program;
  std::vector<std::string> argv{program_path(), "drain", request.job_file};
  argv.insert(argv.end(), request.overrides.begin(), request.overrides.end());
  argv.push_back("--epochs=" + std::to_string(request.epochs));
  if (request.seconds > 0) argv.push_back("--seconds=" + std::to_string(request.seconds));
  if (!request.only_split.empty()) argv.push_back("--split=" + request.only_split);
  return argv;
}

// The overrides of a serve command line, for programs that attach from another folder: paths in them are relative to
// this one.
std::string overrides_for_programs(const RunRequest& request) {
  std::vector<std::string> all;
  for (const std::string& text : request.overrides) {
    const size_t equals = text.find('=');
    const std::string key = text.substr(0, equals);
    bool path = false;
    std::vector<std::string> ends = {".dataset.targets", ".dataset.masks", ".dataset.index", ".sampler.indices",
                                     ".sampler.weights"};
    for (const DatasetKind& kind : kDatasetKinds) {
      if (kind.place != DatasetPlace::none) ends.push_back(std::string(".dataset.") + kind.key);
    }
    for (const std::string& end : ends) path = path || (equals != std::string::npos && key.ends_with(end));
    const char first = path && equals + 1 < text.size() ? text[equals + 1] : '/';
    const bool relative = first == '.' || first == '_' || std::isalnum(static_cast<unsigned char>(first)) != 0;
    all.push_back(relative ? key + "=" + std::filesystem::absolute(text.substr(equals + 1)).string() : text);
  }
  return json_text(nlohmann::json(all));
}

constexpr Nanoseconds kAskHelperEvery = kSecond;
constexpr int64_t kFewestUnanswered = 5;

constexpr const char* kHavingBeenTold = ", having been told: ";

int failure_code(int exit_code) {
  return exit_code != 0 ? exit_code : 1;
}

}  // namespace

std::string program_path() {
  char path[4096] = {};
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path - 1);
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : "penstock";
}

Trainer::Trainer(const RunRequest& request, const Job& job, const ReceiverOptions& options,
                 std::unique_ptr<Endpoint> endpoint, Helper& helper, std::string where)
    : request_(request),
      job_(job),
      receiver_(make_receiver(options, std::move(endpoint))),
      helper_(helper),
      where_(std::move(where)),
      most_unanswered_(static_cast<int>(std::max(silence_limit_ns(job) / kAskHelperEvery, kFewestUnanswered))) {
  receiver_->watch(helper_.poll_fd(), [this] { read_helper(); });
  receiver_->watch(handed_over_.fd(), [this] { take_signals(); });
  receiver_->on_notice(
      [this](const std::string& text) { std::fprintf(stderr, "penstock: %s: %s\n", where_.c_str(), text.c_str()); });
  const bool speaks_for_the_job = options.self == options.coordinator;
  receiver_->on_goodbye([this, speaks_for_the_job](const Goodbye& goodbye) {
    // At once: what comes next, telling ranks that are gone and ending the program, takes seconds, and mpirun may end
    // this rank in between.
    // What the program was told it has said itself; the last line of `penstock launch --run` repeats it.
    const std::string said = goodbye.reason.substr(0, goodbye.reason.find(kHavingBeenTold));
    if (speaks_for_the_job && !goodbye.good) {
      std::fprintf(stderr, "penstock: %s\n", said.c_str());
      if (request_.end != nullptr) request_.end->will_end(failure_code(goodbye.exit_code), goodbye.reason);
    }
    ended_well_ = goodbye.good;
    if (!goodbye.good) end_program(job_.trainer.grace_s);
  });
}

void Trainer::start(const std::string& socket_name, const std::string& token, TrainerPlace place, std::vector<int> cpus,
                    bool keep_stdin, bool relay_output) {
  receiver_->listen(socket_name, token);
  place.receiver = "@" + socket_name;
  place.token = token;
  place.job = request_.job_file;
  ProgramSpec program;
  program.argv = program_of(request_);
  program.environment = trainer_environment(inherited_environment(), place);
  // What was said on this command line is said to the program's DataLoader too: it reads the job file itself.
  program.environment.push_back(std::string(kOverridesVariable) + "=" + json_text(nlohmann::json(request_.overrides)));
  program.cpus = std::move(cpus);
  program.keep_stdin = keep_stdin;
  program.grace_s = job_.trainer.grace_s;
  program.relay_output = relay_output;
  helper_.start(program);
  receiver_->every(kAskHelperEvery, [this](const ReceiverFigures&) { ask_helper(); });
}

void Trainer::serve(const std::string& name, int local_trainer) {
  const std::string socket = serving_socket(name, local_trainer);
  try {
    receiver_->listen(socket, "");
  } catch (const Error& error) {
    if (!try_connect_abstract(socket)) throw;
    throw Error(ErrorKind::usage, "job '" + name + "' is being served on host " + host_name() + " already",
                "end that one (penstock serve --stop " + request_.job_file +
                    "), or give this one another name: in the job file, or name=OTHER");
  }
}

void Trainer::watch_signals(SignalFd& signals) {
  receiver_->watch(signals.fd(), [this, &signals] {
    while (const auto arrived = signals.next()) {
      pass_signal(*arrived);
    }
  });
}

void Trainer::pass_signal(int number) {
  if (request_.serve) {
    if (number == kEndInOrder || number == kEndAtOnce) number = SIGTERM;
    if (number == SIGTERM || number == SIGINT) receiver_->end_serving(signal_name(number));
    return;
  }
  if (number == SIGUSR1 || number == SIGUSR2) {
    helper_.signal(number);
    return;
  }
  switch (end_request_.arrived(number, MonotonicClock().now())) {
    case EndRequest::Answer::nothing: break;
    case EndRequest::Answer::in_order: end_program(job_.trainer.grace_s); break;
    case EndRequest::Answer::at_once: end_program(0); break;
  }
}

void Trainer::hand_over_signal(int number) {
  {
    MutexLock lock(mutex_);
    signals_.push_back(number);
  }
  handed_over_.set();
}

void Trainer::take_signals() {
  handed_over_.clear();
  std::vector<int> numbers;
  {
    MutexLock lock(mutex_);
    numbers.swap(signals_);
  }
  for (const int number : numbers) pass_signal(number);
}

void Trainer::watch_parent_fd(int fd) {
  parent_ = fd;
  receiver_->watch(fd, [this] { end_without_parent(); });
}

bool Trainer::end_without_parent() {
  pollfd gone{parent_, POLLIN, 0};
  if (poll(&gone, 1, 0) <= 0) return false;
  orphaned_ = where_ + kOrphaned;
  end_program(job_.trainer.grace_s);
  // The others are told while this rank can: without its daemon Open MPI ends it within a second, and then they would
  // have to notice its silence.
  receiver_->fail(orphaned_, static_cast<int>(ErrorKind::peer_lost));
  receiver_->stop();
  return true;
}

void Trainer::end_program(double grace_s) {
  const Nanoseconds by = MonotonicClock().now() + static_cast<Nanoseconds>(grace_s * 1e9);
  programs_end_by_ = std::min(programs_end_by_.value_or(by), by);
  helper_.stop(grace_s);
}

void Trainer::stop_program() {
  take_signals();  // what came as the receiver ended
  end_program(ended_well_ ? 0 : job_.trainer.grace_s);
}

void Trainer::clean_up(SignalFd& signals, const std::function<void(int)>& pass) {
  stop_program();
  const MonotonicClock clock;
  const Nanoseconds deadline = clock.now() + static_cast<Nanoseconds>((job_.trainer.grace_s + 5) * 1e9);
  while (helper_.poll_fd() >= 0) {
    while (const auto report = helper_.next_report()) {
      if (report->kind == HelperReport::Kind::ended) return;
    }
    const Nanoseconds left = deadline - clock.now();
    if (left <= 0) break;
    pollfd fds[] = {{helper_.poll_fd(), POLLIN, 0}, {signals.fd(), POLLIN, 0}};
    poll(fds, 2, static_cast<int>(std::min(left, 60 * kSecond) / kMillisecond) + 1);
    while (const auto arrived = signals.next()) {
      if (!request_.serve) pass(*arrived);
    }
  }
  helper_.kill();
  while (helper_.wait_report(1)) {  // the last report ends what the helper looked after
  }
}

void Trainer::ask_helper() {
  // Questions are counted, not seconds: a rank that was stopped itself asks once when it goes on.
  if (helper_.ask()) {
    unanswered_ = 0;
    helper_resumed_ = false;
    return;
  }
  if (++unanswered_ < most_unanswered_) return;
  unanswered_ = 0;
  const std::string who = "the helper of its program (process " + std::to_string(helper_.pid()) + ")";
  if (helper_resumed_) {
    receiver_->finish_program(false, where_ + ": " + who + " does not answer, and did not after SIGCONT either",
                              static_cast<int>(ErrorKind::peer_lost));
    return;
  }
  std::fprintf(stderr, "penstock: %s: %s does not answer; in case that it is stopped, it is continued\n",
               where_.c_str(), who.c_str());
  helper_resumed_ = true;
  helper_.resume();
}

void Trainer::read_helper() {
  if (end_without_parent()) return;  // the helper saw it first, and ended the program
  while (const auto report = helper_.next_report()) {
    switch (report->kind) {
      case HelperReport::Kind::here:
      case HelperReport::Kind::started: break;
      case HelperReport::Kind::start_failed:
        receiver_->finish_program(false, where_ + ": " + report->text, static_cast<int>(ErrorKind::runtime));
        break;
      case HelperReport::Kind::exited: program_exited(report->status); break;
      case HelperReport::Kind::ended:
        receiver_->finish_program(false, where_ + ": the helper process ended", static_cast<int>(ErrorKind::runtime));
        break;
    }
  }
}

void Trainer::program_exited(int status) {
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    receiver_->finish_program(true, "", 0);
    return;
  }
  std::string how = describe_status(status);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127) how += " (a shell's for: a command was not found)";
  if (WIFEXITED(status) && WEXITSTATUS(status) == 126) how += " (a shell's for: a command cannot be executed)";
  if (const std::string& problem = receiver_->reported_problem(); !problem.empty()) how += kHavingBeenTold + problem;
  // Our own drain speaks our exit codes, and has said what was wrong; for a user's program there is one: it failed.
  const bool ours = request_.program.empty() && WIFEXITED(status) && WEXITSTATUS(status) <= 5;
  const int code = ours ? WEXITSTATUS(status) : 1;
  const std::string who = request_.program.empty() ? ": reading the batches (no program was named) " : ": the program ";
  receiver_->finish_program(false, where_ + who + how, code);
}

std::string receiver_socket_name(const std::string& job_id, int trainer) {
  return "penstock/" + std::to_string(::geteuid()) + "/" + job_id + "/p" + std::to_string(trainer);
}

ReceiverOptions options_for_receiver(const RunRequest& request, const Job& job) {
  ReceiverOptions options = receiver_options(job);
  options.whole_job = true;
  options.dump_folder = request.dump_folder;
  options.dump_raw = request.dump_raw;
  options.serving = request.serve;
  options.idle_ns = static_cast<Nanoseconds>(request.idle_s * 1e9);
  options.host = host_name();
  if (request.serve) options.overrides_json = overrides_for_programs(request);
  return options;
}

int free_tcp_port() {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof address;
  if (!fd || ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return 29500;
  }
  return ntohs(address.sin_port);
}

void print_how_to_attach(const RunRequest& request, const std::string& name, int local_trainers) {
  const std::string file = std::filesystem::absolute(request.job_file).lexically_normal().string();
  std::fprintf(stderr,
               "penstock: serving job '%s'\n"
               "  start the trainers, on every node:  PENSTOCK_ATTACH=1 torchrun --nproc_per_node=%d train.py\n"
               "  end it, on one of them:             penstock serve --stop %s   (or SIGTERM)\n",
               name.c_str(), local_trainers, file.c_str());
}

void print_notice(const std::string& text) {
  std::fprintf(stderr, "penstock: %s\n", text.c_str());
}

int conclude(const RunRequest& request, const Job& job, const Receiver& receiver) {
  const Goodbye& goodbye = receiver.goodbye();
  if (!goodbye.good) return failure_code(goodbye.exit_code);  // why was said when it was heard
  const nlohmann::json report = merge_reports(receiver.reports());
  std::string back;
  for (const nlohmann::json& rank : report["ranks"]) {
    for (const nlohmann::json& name : rank.value("back_loaders", nlohmann::json::array())) {
      back += (back.empty() ? "" : ", ") + name.get<std::string>();
    }
  }
  if (request.end != nullptr && !back.empty()) request.end->came_back(back);
  // The report is what the command is for, so it is stdout's; with --json that is the object.
  if (!request.profile_file.empty()) save_profile(request, job, report);
  if (!request.quiet && request.json) std::fputs(report_text(report).c_str(), stderr);
  std::string out = !request.quiet && !request.json ? report_text(report) : "";
  if (request.json) out = json_text_replacing(report) + "\n";
  // launch prints it itself, and so sees whether it could.
  if (out.empty() || (request.end != nullptr && request.end->report(out))) return 0;
  std::fputs(out.c_str(), stdout);
  std::fflush(stdout);
  return 0;
}

}  // namespace penstock
