// Deaths around a ring of processes.
#include "transport/node_ring.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <set>

#include "runtime/base/wire.h"
#include "transport/mesh.h"

namespace penstock {
namespace {

struct News {
  PeerId seen_by;
  PeerId dead;  // -1: it is connected
};

// A rank: writes its news, until it is killed, or told by SIGTERM to leave in good order; SIGUSR1 lets it hang up and live
// on.
[[noreturn]] void be_rank(const std::string& job, PeerId self, const std::vector<PeerId>& ranks, int out) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  static volatile sig_atomic_t leave = 0;
  struct sigaction action {};
  action.sa_handler = [](int) { leave = 1; };
  ::sigaction(SIGTERM, &action, nullptr);
  static volatile sig_atomic_t hang_up = 0;
  action.sa_handler = [](int) { hang_up = 1; };
  ::sigaction(SIGUSR1, &action, nullptr);
  {
    NodeRing ring(job, "secret", self, ranks);
    ring.connect();
    int looks = 0;
    while (leave == 0) {
      while (const auto dead = ring.next_dead()) {
        const News news{self, *dead};
        (void)!::write(out, &news, sizeof news);
      }
      std::vector<pollfd> fds;
      ring.collect_fds(fds);
      // Some looks later than connected and accepted: who connected has said who it is.
      if (fds.size() == (ranks.size() > 1 ? 3u : 1u) && ++looks == 3) {
        const News news{self, -1};
        (void)!::write(out, &news, sizeof news);
      }
      (void)::poll(fds.data(), fds.size(), 20);
      if (hang_up != 0) ring.hang_up();
    }
  }
  ::_exit(0);
}

class Node {
 public:
  explicit Node(const std::vector<PeerId>& ranks) {
    static int count = 0;
    job = "ring" + std::to_string(::getpid()) + "-" + std::to_string(count++);
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    news_ = UniqueFd(ends[0]);
    for (const PeerId rank : ranks) {
      pids_[rank] = ::fork();
      if (pids_[rank] == 0) be_rank(job, rank, ranks, ends[1]);
    }
    ::close(ends[1]);
    for (size_t i = 0; i < ranks.size(); ++i) REQUIRE(next().dead == -1);
  }
  ~Node() {
    for (const auto& [rank, pid] : pids_) end(pid, SIGKILL);
  }
  void kill(PeerId rank) { end(take(rank), SIGKILL); }
  void hang_up(PeerId rank) { ::kill(pids_.at(rank), SIGUSR1); }
  void leave(PeerId rank) { end(take(rank), SIGTERM); }

  // Who saw whose death: so much news, and then none for `silence_ms`: a second where a gap must have closed meanwhile,
  // for which both its ends have to get a core several times.
  std::map<PeerId, std::set<PeerId>> see(size_t count, int silence_ms = 100) {
    std::map<PeerId, std::set<PeerId>> seen;
    for (; count > 0; --count) {
      const News one = next();
      CHECK(seen[one.seen_by].insert(one.dead).second);
    }
    pollfd more{news_.get(), POLLIN, 0};
    CHECK((::poll(&more, 1, silence_ms) == 0 || (more.revents & POLLIN) == 0));
    return seen;
  }

  std::string job;

  News next() {
    pollfd ready{news_.get(), POLLIN, 0};
    REQUIRE(::poll(&ready, 1, 20'000) == 1);
    News one{};
    REQUIRE(::read(news_.get(), &one, sizeof one) == sizeof one);
    return one;
  }

 private:
  pid_t take(PeerId rank) {
    const pid_t pid = pids_.at(rank);
    pids_.erase(rank);
    return pid;
  }
  static void end(pid_t pid, int signal) {
    ::kill(pid, signal);
    ::waitpid(pid, nullptr, 0);
  }

  UniqueFd news_;
  std::map<PeerId, pid_t> pids_;
};

using Seen = std::map<PeerId, std::set<PeerId>>;

TEST_CASE("both neighbours see a death, and the gap closes") {
  Node node({0, 1, 2, 3});
  node.kill(1);
  CHECK(node.see(2) == Seen{{0, {1}}, {2, {1}}});
  node.kill(2);  // 0 is connected to it by now, and 3 was from the beginning
  CHECK(node.see(2) == Seen{{0, {2}}, {3, {2}}});
  node.kill(0);
  CHECK(node.see(2) == Seen{{3, {0, 1}}});  // looking for its next rank, it finds that 1 is not there either
}

TEST_CASE("neighbours that die together are all seen") {
  Node node({3, 4, 5, 6, 7});
  for (const PeerId rank : {5, 4, 6}) node.kill(rank);
  std::set<PeerId> dead;
  while (dead.size() < 3) dead.insert(node.next().dead);  // how many see each depends on who was still there
  CHECK(dead == std::set<PeerId>{4, 5, 6});
}

TEST_CASE("who leaves in good order is no news, and the ring closes behind it") {
  Node node({0, 1, 2, 3});
  node.leave(1);
  CHECK(node.see(0, 1000) == Seen{});
  node.kill(2);
  CHECK(node.see(2) == Seen{{0, {2}}, {3, {2}}});
}

TEST_CASE("who hangs up without a word is dead to its neighbours, though it lives") {
  Node node({1, 4, 6, 7});
  node.hang_up(4);
  CHECK(node.see(2) == std::map<PeerId, std::set<PeerId>>{{1, {4}}, {6, {4}}});
}

TEST_CASE("where ranks leave together nobody is taken for dead") {
  Node node({0, 1, 2, 3, 4, 5});
  for (const PeerId rank : {3, 1, 2, 5}) node.leave(rank);
  CHECK(node.see(0) == Seen{});
}

TEST_CASE("a lone rank, and strangers") {
  Node alone({5});
  CHECK(alone.see(0) == Seen{});
  Node node({0, 1});
  {
    NodeRing stranger(node.job, "wrong", 9, {1, 9});
    stranger.connect();
  }
  CHECK(node.see(0) == Seen{});
}

TEST_CASE("while a rank's predecessor lives, who claims to be it or one before it is no news; real deaths are seen") {
  Node node({0, 1, 2, 3});
  for (const PeerId claimed : {0, 1, 3}) {
    for (const bool takes_its_leave : {false, true}) {
      PacketSocket impostor(
          connect_abstract("penstock/" + std::to_string(::geteuid()) + "/" + node.job + "/n2", kSecond));
      WireWriter hello;
      hello.i32(claimed);
      hello.text("secret");
      impostor.send(hello.bytes());
      const std::byte leaving{0};
      if (takes_its_leave) impostor.send({&leaving, 1});
    }
  }
  CHECK(node.see(0) == Seen{});
  std::vector<UniqueFd> silent(100);
  for (UniqueFd& one : silent)
    one = connect_abstract("penstock/" + std::to_string(::geteuid()) + "/" + node.job + "/n2", kSecond);
  node.kill(1);
  CHECK(node.see(2, 1000) == Seen{{0, {1}}, {2, {1}}});
  node.kill(0);
  CHECK(node.see(3) == Seen{{2, {0}}, {3, {0, 1}}});  // the gap before 2 had closed; 3 had not heard of 1
}

// A transport that always has another message of rank 1, and does not see deaths.
class Flood final : public Endpoint {
 public:
  Capabilities capabilities(PeerId) const override { return {"flood"}; }
  void send(PeerId, Message) override {}
  void send_chunk(PeerId, Message, ChunkBufferRef, size_t) override {}
  void release(PeerId, uint64_t) override {}
  bool peers_map_arenas() const noexcept override { return false; }
  void register_arena(const Arena&) override {}
  void forget_arena(uint32_t) override {}
  bool poll(Incoming& incoming) override {
    incoming = MessageArrived{1, {}};
    return true;
  }
  void collect_fds(std::vector<pollfd>&) const override {}
  bool flush(Nanoseconds) override { return true; }
};

TEST_CASE("a death is seen while messages flood in") {
  const std::string job = "flood" + std::to_string(::getpid());
  const auto ring = std::make_shared<NodeRing>(job, "secret", 0, std::vector<PeerId>{0, 1});
  NodeRing other(job, "secret", 1, {0, 1});
  ring->connect();
  other.connect();
  for (int i = 0; i < 3; ++i) {
    CHECK_FALSE(ring->next_dead().has_value());
    CHECK_FALSE(other.next_dead().has_value());
  }
  Mesh mesh;
  mesh.add(std::make_unique<Flood>(), {1});
  mesh.watch_node(ring);
  other.hang_up();
  Incoming incoming;
  int messages = 0;
  while (messages < 100 && mesh.poll(incoming) && std::holds_alternative<MessageArrived>(incoming)) ++messages;
  const auto* const lost = std::get_if<PeerLost>(&incoming);
  REQUIRE(lost != nullptr);
  CHECK(lost->peer == 1);
  CHECK(messages > 0);  // the ring is not asked before each
}

}  // namespace
}  // namespace penstock
