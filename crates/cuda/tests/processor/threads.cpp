#include "threads.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "processor.h"

#if defined(__x86_64__)
// Keeps what a function must keep, on the stack, and goes on with another stack.
extern "C" void go_on(void** own, void* other);
asm(R"(
.text
.globl go_on
.hidden go_on
go_on:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
#else
#include <ucontext.h>
#endif

namespace {

constexpr size_t kStack = 64 << 10;
constexpr size_t kMost = 1024;
constexpr size_t kWarp = 32;

struct Fiber {
#if defined(__x86_64__)
  void* stack = nullptr;
#else
  ucontext_t context;
#endif
  bool done = false;
  uint64_t waits = 0;      // for the block, so far
  uint64_t exchanges = 0;  // with the warp, so far
  bool for_block = false;  // whether it waits for the block now, or for the warp
};

struct Block {
  Processor* state = nullptr;
  const std::function<void()>* kernel = nullptr;
  std::vector<Fiber> fibers;
  // What each thread has given at the last two exchanges.
  std::array<std::vector<float>, 2> given;
  size_t current = 0;
#if defined(__x86_64__)
  void* host = nullptr;
#else
  ucontext_t host;
#endif
};

Block block;

char* stacks() {
  static auto* memory = static_cast<char*>(std::aligned_alloc(4096, kStack * kMost));
  return memory;
}

void to_host() {
#if defined(__x86_64__)
  go_on(&block.fibers[block.current].stack, block.host);
#else
  swapcontext(&block.fibers[block.current].context, &block.host);
#endif
}

void thread_main() {
  (*block.kernel)();
  block.fibers[block.current].done = true;
  to_host();
  std::abort();
}

void wait_for_block() {
  auto& fiber = block.fibers[block.current];
  ++fiber.waits;
  fiber.for_block = true;
  to_host();
}

float exchange(float own, int from) {
  const size_t thread = block.current;
  auto& fiber = block.fibers[thread];
  auto& given = block.given[fiber.exchanges++ % 2];
  given[thread] = own;
  fiber.for_block = false;
  to_host();
  return given[thread / kWarp * kWarp + static_cast<size_t>(from)];
}

// Whether a thread may go on: all others have come to where it waits.
bool may_go_on(size_t thread) {
  const Fiber& own = block.fibers[thread];
  const size_t warp = thread / kWarp * kWarp, count = block.fibers.size();
  const size_t first = own.for_block ? 0 : warp, last = own.for_block ? count : std::min(warp + kWarp, count);
  for (size_t number = first; number < last; ++number) {
    const Fiber& other = block.fibers[number];
    if (other.waits < own.waits || !own.for_block && other.exchanges < own.exchanges) return false;
  }
  return true;
}

void prepare(size_t thread) {
  Fiber& fiber = block.fibers[thread];
  char* stack = stacks() + kStack * thread;
#if defined(__x86_64__)
  auto** top = reinterpret_cast<void**>(stack + kStack) - 2;
  *top = reinterpret_cast<void*>(&thread_main);
  fiber.stack = top - 6;
#else
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = stack;
  fiber.context.uc_stack.ss_size = kStack;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, &thread_main, 0);
#endif
}

void resume(size_t thread) {
  block.current = thread;
  block.state->thread = static_cast<unsigned int>(thread);
#if defined(__x86_64__)
  go_on(&block.host, block.fibers[thread].stack);
#else
  swapcontext(&block.host, &block.fibers[thread].context);
#endif
}

std::string run_block(const std::vector<size_t>& turns) {
  for (size_t thread : turns) prepare(thread);
  for (size_t left = turns.size(); left > 0;) {
    bool any = false;
    for (size_t thread : turns) {
      if (block.fibers[thread].done || !may_go_on(thread)) continue;
      any = true;
      resume(thread);
      left -= block.fibers[thread].done;
    }
    if (!any) return "threads of a block wait for some that do not come";
  }
  return "";
}

}  // namespace

std::string run_grid(
    Processor& state, unsigned int blocks, unsigned int threads, unsigned int order, const std::function<void()>& kernel) {
  if (threads == 0 || threads > kMost || blocks == 0) return "a grid without threads, or a block with too many";
  std::vector<size_t> turns(threads);
  for (size_t thread = 0; thread < threads; ++thread) turns[thread] = thread;
  // Some other order: the numbers that are left, each so many further.
  for (size_t thread = threads; order > 0 && thread > 1; --thread) {
    std::swap(turns[thread - 1], turns[(thread * 2654435761u + order) % thread]);
  }
  state = {0, 0, threads, blocks, &wait_for_block, &exchange};
  for (auto& given : block.given) given.assign(std::max<size_t>(threads, kWarp), 0.0f);
  for (unsigned int number = 0; number < blocks; ++number) {
    // Backwards in other orders, so that no block rests on an earlier one.
    state.block = order > 0 ? blocks - 1 - number : number;
    block.state = &state;
    block.kernel = &kernel;
    block.fibers.assign(threads, Fiber());
    auto wrong = run_block(turns);
    if (!wrong.empty()) return wrong;
  }
  return "";
}
