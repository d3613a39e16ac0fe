// Pieces of a card's memory that are lent to other processes: who may write when, and that bytes are right, whoever
//   dies.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <vector>

#include "runtime/base/wire.h"
#include "runtime/card/card_finisher.h"
#include "runtime/card/card_pieces.h"
#include "runtime/card/host_card.h"
#include "tests/support/faulty_card.h"
#include "transport/unix_socket.h"

namespace {

using namespace penstock;

constexpr size_t kCardBytes = size_t{64} << 20;
constexpr Nanoseconds kSoon = 20 * kSecond;

std::vector<uint64_t> ids_of_all(CardPieces& pieces, size_t bytes) {
  std::vector<uint64_t> ids;
  while (const auto piece = pieces.take(bytes)) ids.push_back(piece->id);
  return ids;
}

}  // namespace

TEST_CASE("a piece that was lent is free again when the one that it was lent to says so, once") {
  const auto card = open_host_card(0, kCardBytes);
  CardPieces pieces(*card, 4096);
  const auto first = pieces.take(3000);
  REQUIRE(first);
  CHECK_FALSE(pieces.take(3000));  // no room
  CHECK(pieces.lend(first->id, 1));
  CHECK_FALSE(pieces.lend(first->id, 2));  // another one has it
  SUBCASE("not at somebody else's word, nor at its filler's") {
    pieces.give_back(first->id, 2);
    pieces.drop(first->id);
    CHECK_FALSE(pieces.take(3000));
  }
  SUBCASE("nor at the word on a piece that lay in the same place before") {
    pieces.give_back(first->id, 1);
    const auto second = pieces.take(3000);
    REQUIRE(second);
    CHECK(second->at == first->at);
    CHECK(pieces.lend(second->id, 1));
    pieces.give_back(first->id, 1);
    CHECK_FALSE(pieces.take(3000));
    pieces.give_back(second->id, 1);
    CHECK(pieces.take(3000));
  }
  CHECK(pieces.figures().refused >= 2);
}

TEST_CASE("one consumer cannot have it all, however slowly it reads") {
  const auto card = open_host_card(0, kCardBytes);
  CardPieces pieces(*card, 64 * 1024);
  const size_t all = pieces.bytes() / 1024;
  const auto most = [&](CardPieces::Consumer whose) {
    size_t taken = 0;
    while (const auto piece = pieces.take(1024, whose)) {
      if (taken++ % 2 == 0) CHECK(pieces.lend(piece->id, whose));  // filled or lent: it counts as its
    }
    return taken;
  };
  // Four times what is left: 4/5 of it, then of the rest as much as leaves a quarter of that.
  const size_t first = most(1);
  CHECK(first == all * 4 / 5);
  CHECK_FALSE(pieces.take(1024, 1));
  const size_t second = most(2);
  CHECK((second >= 1 && 4 * (all - first - second) + 4 > second));
  // With both at it from the beginning, each has as much.
  for (const CardPieces::Consumer one : {1, 2}) pieces.forget(one);
  CardPieces fair(*card, 64 * 1024);
  size_t taken[2] = {0, 0};
  for (bool any = true; any;) {
    any = false;
    for (const int one : {0, 1}) {
      if (!fair.take(1024, one)) continue;
      ++taken[one];
      any = true;
    }
  }
  CHECK(taken[0] + taken[1] >= all * 8 / 10);
  CHECK((taken[0] <= taken[1] + 1 && taken[1] <= taken[0] + 1));
}

TEST_CASE("a consumer that dies gives back what it had, and nothing that is still being written") {
  const auto card = open_host_card(0, kCardBytes);
  CardPieces pieces(*card, 4096);
  const auto read = pieces.take(1024);
  const auto others = pieces.take(1024);
  const auto filled = pieces.take(2048);
  REQUIRE((read && others && filled));
  CHECK(pieces.lend(read->id, 1));
  CHECK(pieces.lend(others->id, 2));
  pieces.forget(1);
  const auto again = pieces.take(1024);
  REQUIRE(again);
  CHECK(again->at == read->at);
  CHECK_FALSE(pieces.take(1));              // the other two are not free
  CHECK_FALSE(pieces.lend(filled->id, 1));  // it was for the dead one: free, as it is written now
  CHECK(pieces.take(2048));
  CHECK(pieces.figures().out == 3);
}

TEST_CASE("a consumer that is left keeps what it had, and gets no more") {
  const auto card = open_host_card(0, kCardBytes);
  CardPieces pieces(*card, 4096);
  const auto read = pieces.take(1024);
  const auto filled = pieces.take(2048);
  REQUIRE((read && filled));
  CHECK(pieces.lend(read->id, 1));
  pieces.leave(1);
  CHECK_FALSE(pieces.lend(filled->id, 1));
  CHECK(pieces.figures().out == 1);
  const auto next = pieces.take(1024);
  REQUIRE(next);
  CHECK(next->at != read->at);
  pieces.give_back(read->id, 1);  // it says so all the same
  CHECK(pieces.figures().out == 1);
}

TEST_CASE("a card that shares no memory says so, and one that is short of it") {
  const auto faults = std::make_shared<CardFaults>();
  FaultyCard card(open_host_card(0, 1 << 20), faults);
  CHECK_THROWS_WITH_AS(CardPieces(card, 2 << 20), doctest::Contains("out of memory"), CardError);
  for (int i = 0; i < 3; ++i) CHECK_NOTHROW(CardPieces(card, 1 << 20));  // and all of it goes back
  faults->most_shared_bytes = 0;
  CHECK_THROWS_WITH_AS(CardPieces(card, 1000), doctest::Contains("shares no memory"), Error);
}

TEST_CASE("images outside of the shared memory are not looked at") {
  const auto card = open_host_card(0, kCardBytes);
  const auto share = card->share(1000);
  CHECK(images_in(*share, 0, 1000) == reinterpret_cast<const uint8_t*>(share->data()));
  CHECK(images_in(*share, 1000, 0) == reinterpret_cast<const uint8_t*>(share->data()) + 1000);
  for (const auto& [at, bytes] : {std::pair<uint64_t, uint64_t>{1, 1000}, {1001, 0}, {~0ULL, 2}, {2, ~0ULL}}) {
    CHECK_THROWS_WITH_AS(images_in(*share, at, bytes), doctest::Contains("outside the memory"), Error);
  }
  // Nor is a descriptor of less than was said.
  CHECK_THROWS_AS(card->open_share(UniqueFd(::dup(share->fd())), 100'000), Error);
}

TEST_CASE("whatever is taken, lent and given back, no two pieces meet, and in the end all is free") {
  const auto seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  const auto card = open_host_card(0, kCardBytes);
  constexpr size_t kBytes = 1 << 16;
  CardPieces pieces(*card, kBytes);
  struct Known {
    CardPiece piece;
    int32_t lent_to = -1;
  };
  std::vector<Known> known;
  int32_t dead = 0;
  for (int i = 0; i < 20'000; ++i) {
    const auto any = [&] { return random() % known.size(); };
    switch (random() % 4) {
      case 0:
        if (const auto piece = pieces.take(1 + random() % (kBytes / 8))) known.push_back({*piece});
        break;
      case 1:
        if (known.empty()) break;
        if (Known& one = known[any()]; one.lent_to < 0) {
          one.lent_to = dead + static_cast<int32_t>(random() % 3);
          CHECK(pieces.lend(one.piece.id, one.lent_to));
        }
        break;
      case 2: {
        if (known.empty()) break;
        const size_t at = any();
        const auto from = dead + static_cast<int32_t>(random() % 3);
        pieces.give_back(known[at].piece.id, from);
        if (known[at].lent_to == from) known.erase(known.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      }
      default:
        if (random() % 100 != 0) break;
        pieces.forget(dead);
        std::erase_if(known, [&](const Known& one) { return one.lent_to == dead; });
        ++dead;
    }
    std::map<uint64_t, uint64_t> places;
    for (const Known& one : known) places[one.piece.at] = one.piece.at + one.piece.bytes;
    REQUIRE(places.size() == known.size());
    uint64_t end = 0;
    for (const auto& [from, to] : places) {
      REQUIRE(from >= end);
      end = to;
    }
    REQUIRE(end <= pieces.bytes());
  }
  for (const Known& one : known) {
    pieces.drop(one.piece.id);
    if (one.lent_to >= 0) pieces.give_back(one.piece.id, one.lent_to);
  }
  CHECK(pieces.figures().out == 0);
  CHECK(pieces.take(kBytes));
}

// ---- between processes -------------------------------------------------------------------------------------------
namespace {

const Finisher& finisher() {
  static const Finisher one({.dtype = DType::float32, .memory_format = MemoryFormat::channels_last}, 3, 20, 30);
  return one;
}
constexpr size_t kImage = size_t{3} * 20 * 30;
constexpr int64_t kChunk = 4;

std::vector<uint8_t> pixels_of(uint64_t chunk) {
  std::mt19937 random(static_cast<uint32_t>(chunk) + 77);
  std::vector<uint8_t> pixels(kChunk * kImage);
  for (uint8_t& value : pixels) value = static_cast<uint8_t>(random());
  return pixels;
}

// What is said of a piece, to and from.
struct Word {
  uint64_t chunk = 0;
  uint64_t id = 0;
  uint64_t at = 0;
};
void say(PacketSocket& socket, const Word& word) {
  WireWriter out;
  out.u64(word.chunk);
  out.u64(word.id);
  out.u64(word.at);
  socket.send(out.bytes());
  socket.flush(kSoon);
}
bool hear(PacketSocket& socket, Word& word) {
  Packet packet;
  if (!socket.receive_until(packet, kSoon)) return false;
  WireReader in(packet.bytes, "word");
  word = {in.u64(), in.u64(), in.u64()};
  return true;
}

// A process of the test's own, which ends with `run`, or when it is killed.
class Child {
 public:
  explicit Child(const std::function<int(PacketSocket& socket)>& run) {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      ::close(ends[0]);
      PacketSocket socket{UniqueFd(ends[1])};
      int code = 99;
      try {
        code = run(socket);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "child: %s\n", error.what());
      }
      ::_exit(code);
    }
    ::close(ends[1]);
    socket_ = PacketSocket(UniqueFd(ends[0]));
  }
  ~Child() {
    if (pid_ > 0) (void)kill();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  PacketSocket& socket() { return socket_; }
  int kill() {
    ::kill(pid_, SIGKILL);
    return wait();
  }
  int wait() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return status;
  }

 private:
  pid_t pid_ = -1;
  PacketSocket socket_;
};

// The loader's side: makes chunks on its card, and lends them.
class Lender {
 public:
  Lender(PacketSocket& socket, size_t pieces) : socket_(socket), pieces_(*card_, pieces * piece_bytes()) {
    WireWriter out;
    out.u64(pieces_.bytes());
    socket.send(out.bytes(), pieces_.fd());
  }
  static size_t piece_bytes() { return (kChunk * kImage + 255) / 256 * 256; }

  // False where there is no room.
  bool lend(uint64_t chunk) {
    const auto piece = pieces_.take(kChunk * kImage);
    if (!piece) return false;
    const std::vector<uint8_t> pixels = pixels_of(chunk);
    const CardBlock made(*card_, pixels.size(), CardMemory::device);
    stream_->upload(made.data(), reinterpret_cast<const std::byte*>(pixels.data()), pixels.size());
    stream_->copy(piece->data, made.data(), pixels.size());
    stream_->wait(kSoon);
    if (!pieces_.lend(piece->id, 1)) throw Error(ErrorKind::runtime, "the trainer is gone");
    say(socket_, {chunk, piece->id, piece->at});
    return true;
  }
  CardPieces& pieces() { return pieces_; }

 private:
  std::unique_ptr<Card> card_ = open_host_card(0, kCardBytes);
  PacketSocket& socket_;
  CardPieces pieces_;
  std::unique_ptr<CardStream> stream_ = card_->stream();
};

// The trainer's side: finishes chunks from the loader's memory, on a card of its own.
class Borrower {
 public:
  explicit Borrower(PacketSocket& socket) : finishing_(card_, finisher()) {
    Packet packet;
    if (!socket.receive_until(packet, kSoon)) throw Error(ErrorKind::runtime, "no memory was shared");
    WireReader in(packet.bytes, "memory");
    share_ = card_->open_share(std::move(packet.fd), in.u64());
  }
  // Whether the tensor is what finishing the chunk's pixels here gives.
  bool right(const Word& word) {
    const std::vector<uint8_t> pixels = pixels_of(word.chunk);
    std::vector<std::byte> wanted(kChunk * finisher().bytes_per_sample());
    std::vector<std::byte> tensor(wanted.size());
    for (size_t i = 0; i < kChunk; ++i) {
      finisher().run(pixels.data() + i * kImage, wanted.data() + i * finisher().bytes_per_sample());
    }
    finishing_.finish({{images_in(*share_, word.at, kChunk * kImage), kChunk, true}}, tensor.data());
    finishing_.wait();
    return tensor == wanted;
  }

 private:
  std::shared_ptr<Card> card_ = open_host_card(0, kCardBytes);
  CardFinisher finishing_;
  std::unique_ptr<CardShare> share_;
};

}  // namespace

TEST_CASE(
    "a trainer's process finishes what a loader's has made, through few pieces, and without a byte of it by the host") {
  constexpr uint64_t kChunks = 300;
  Child trainer([](PacketSocket& socket) {
    Borrower borrower(socket);
    Word word;
    for (uint64_t chunk = 0; chunk < kChunks; ++chunk) {
      if (!hear(socket, word) || word.chunk != chunk) return 1;
      if (!borrower.right(word)) return 2;
      say(socket, word);
    }
    return 0;
  });
  Lender lender(trainer.socket(), 3);
  uint64_t back = 0;
  const auto take_back = [&] {
    Word word;
    REQUIRE(hear(trainer.socket(), word));
    CHECK(word.chunk == back++);
    lender.pieces().give_back(word.id, 1);
  };
  for (uint64_t chunk = 0; chunk < kChunks;) {
    if (lender.lend(chunk)) {
      ++chunk;
    } else {
      CHECK(lender.pieces().figures().out == 3);
      take_back();
    }
  }
  while (back < kChunks) take_back();
  CHECK(trainer.wait() == 0);
  CHECK(lender.pieces().figures().out == 0);
  CHECK(lender.pieces().figures().lent == kChunks);
}

TEST_CASE("what a loader lent before it was killed stays what it was") {
  Child loader([](PacketSocket& socket) {
    Lender lender(socket, 5);
    for (uint64_t chunk = 0; lender.lend(chunk); ++chunk) {
    }
    Word word;
    return hear(socket, word) ? 1 : 2;  // killed meanwhile
  });
  Borrower borrower(loader.socket());
  std::vector<Word> words(5);
  for (Word& word : words) REQUIRE(hear(loader.socket(), word));
  CHECK(borrower.right(words[0]));
  const int status = loader.kill();
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
  for (const Word& word : words) CHECK(borrower.right(word));
}

TEST_CASE("memory that was handed over and not opened yet outlives its loader, too") {
  Child loader([](PacketSocket& socket) {
    Lender lender(socket, 1);
    if (!lender.lend(3)) return 1;
    return ::raise(SIGKILL);
  });
  CHECK(WIFSIGNALED(loader.wait()));
  Borrower borrower(loader.socket());
  Word word;
  REQUIRE(hear(loader.socket(), word));
  CHECK(borrower.right(word));
}

TEST_CASE("a trainer that is killed leaves all of its loader's memory free") {
  Child trainer([](PacketSocket& socket) {
    Borrower borrower(socket);
    Word word;
    for (int i = 0; i < 2; ++i) {
      if (!hear(socket, word) || !borrower.right(word)) return 1;
    }
    say(socket, word);  // of the last one
    ::pause();          // until it is killed
    return 2;
  });
  Lender lender(trainer.socket(), 4);
  for (uint64_t chunk = 0; chunk < 4; ++chunk) REQUIRE(lender.lend(chunk));
  Word word;
  REQUIRE(hear(trainer.socket(), word));
  lender.pieces().give_back(word.id, 1);
  CHECK(lender.pieces().figures().out == 3);
  (void)trainer.kill();
  CHECK_FALSE(hear(trainer.socket(), word));  // the hang-up, by which a port knows it
  lender.pieces().forget(1);
  CHECK(ids_of_all(lender.pieces(), Lender::piece_bytes()).size() == 4);
}
