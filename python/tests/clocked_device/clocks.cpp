#include "clocks.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "graphs.h"

namespace clocked {
namespace {

// Memory that was given back while another stream used it.
struct InFlight {
  c10::Stream owner;
  Use use;
  const char* how;
};

struct State {
  std::mutex lock;
  std::vector<Clock> streams{kDevices, Clock(kDevices)};  // the default streams come first
  std::vector<c10::DeviceIndex> devices{0, 1, 2, 3};      // of the streams
  Clock host;
  std::vector<InFlight> in_flight;
  std::array<Memory, kDevices> memory;
  std::map<std::string, int64_t> waits;
  std::vector<std::string> faults;
  std::map<const char*, std::weak_ptr<Block>> blocks;  // by where they begin
};

// Storages are freed until the very end of a process.
State& state() {
  static auto* made = new State;
  return *made;
}

thread_local std::array<c10::StreamId, kDevices> current{};

size_t number(c10::Stream stream) {
  return stream.id() == 0 ? stream.device_index() : kDevices - 1 + stream.id();
}

c10::Stream stream_of(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, device), id);
}

void join(Clock& clock, const Clock& other) {
  clock.resize(std::max(clock.size(), other.size()));
  for (size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

bool covers(const Clock& clock, const Use& use) {
  return use.time == 0 || (use.stream < clock.size() && clock[use.stream] >= use.time);
}

std::string text(const Use& use) {
  return "`" + use.by + "` on stream " + std::to_string(use.stream);
}

[[noreturn]] void fail(State& all, const std::string& what) {
  all.faults.push_back(what);
  TORCH_CHECK(false, what);
}

// A kernel of this name begins on a stream.
Use launch(State& all, c10::Stream stream, std::string name) {
  Clock& clock = all.streams[number(stream)];
  join(clock, all.host);
  return {number(stream), ++clock[number(stream)], std::move(name)};
}

// The allocator may give out to a stream whatever was freed there.
void give_out(State& all, c10::Stream stream) {
  const Clock& clock = all.streams[number(stream)];
  auto& list = all.in_flight;
  auto own = [&](const InFlight& one) { return one.owner == stream; };
  list.erase(
      std::remove_if(list.begin(), list.end(), [&](const auto& one) { return own(one) && covers(clock, one.use); }),
      list.end());
  auto found = std::find_if(list.begin(), list.end(), own);
  if (found == list.end()) return;
  const InFlight one = *found;
  list.erase(found);
  fail(all, "memory that " + text(one.use) + " still " + one.how + " is given out again on stream " +
                std::to_string(number(stream)) + ": it was freed without a wait or `record_stream`");
}

void count(State& all, const Block& block, int sign) {
  auto& memory = all.memory[block.owner.device_index()];
  memory.now += sign * static_cast<int64_t>(block.size);
  memory.peak = std::max(memory.peak, memory.now);
}

using Held = std::shared_ptr<Block>;

// The last storage of a block is gone.
void release(void* context) {
  std::unique_ptr<Held> held(static_cast<Held*>(context));
  auto& all = state();
  std::lock_guard guard(all.lock);
  const Block& block = **held;
  count(all, block, -1);
  Clock known = all.streams[number(block.owner)];
  join(known, all.host);
  auto note = [&](const Use& use, const char* how) {
    bool waits = std::count(block.recorded.begin(), block.recorded.end(), use.stream);
    if (!waits && !covers(known, use)) all.in_flight.push_back({block.owner, use, how});
  };
  note(block.written, "writes");
  for (const Use& use : block.read) note(use, "reads");
}

void let_go(void* context) {
  delete static_cast<Held*>(context);
}

c10::DataPtr pointer_to(State& all, const Held& block) {
  const auto* data = static_cast<const char*>(block->data);
  // What lay there before is gone: left, it would hide the block from who touches it behind where that began.
  all.blocks.erase(all.blocks.lower_bound(data), all.blocks.lower_bound(data + block->size));
  all.blocks[data] = block;
  return {block->data, new Held(block), &release, block->owner.device()};
}

}  // namespace

Block::Block(c10::Stream owner, void* data, size_t size, c10::Storage host)
    : owner(owner), data(data), size(size), host(std::move(host)) {}

Block::~Block() {
  if (host && host.use_count() > 1) return;
  std::memset(data, 0xff, size);
  asm volatile("" ::: "memory");  // whoever still has the address is to see it
  if (!host) std::free(data);
}

c10::DataPtr allocate(c10::Stream stream, size_t size) {
  if (size == 0) return {nullptr, stream.device()};
  auto& all = state();
  std::lock_guard guard(all.lock);
  give_out(all, stream);
  void* data = std::aligned_alloc(64, (size + 63) / 64 * 64);
  std::memset(data, 0xff, size);
  auto block = std::make_shared<Block>(stream, data, size, c10::Storage());
  block->written = launch(all, stream, "an allocation");
  count(all, *block, 1);
  return pointer_to(all, block);
}

c10::DataPtr adopt(c10::Stream stream, const Use& made_by, const c10::Storage& host) {
  if (host.nbytes() == 0) return {nullptr, stream.device()};
  auto& all = state();
  std::lock_guard guard(all.lock);
  give_out(all, stream);
  auto block = std::make_shared<Block>(stream, const_cast<void*>(host.data()), host.nbytes(), host);
  block->written = made_by;
  count(all, *block, 1);
  return pointer_to(all, block);
}

std::shared_ptr<Block> block_at(const void* address) {
  auto& all = state();
  std::lock_guard guard(all.lock);
  auto next = all.blocks.upper_bound(static_cast<const char*>(address));
  auto found = next == all.blocks.begin() ? nullptr : std::prev(next)->second.lock();
  if (!found || static_cast<const char*>(address) >= static_cast<const char*>(found->data) + found->size) {
    fail(all, "a kernel touches memory that is not the device's");
  }
  return found;
}

std::shared_ptr<Block> block_of(const c10::DataPtr& pointer) {
  return pointer.get_deleter() == &release ? *static_cast<Held*>(pointer.get_context()) : nullptr;
}

std::shared_ptr<Block> block_of(const at::TensorBase& tensor) {
  return block_of(tensor.storage().data_ptr());
}

c10::Storage on_host(const c10::Storage& storage) {
  auto block = block_of(storage.data_ptr());
  c10::DataPtr data(nullptr, c10::kCPU);
  if (block) data = {block->data, new Held(block), &let_go, c10::kCPU};
  return {c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data), c10::GetCPUAllocator(), true};
}

at::TensorBase on_host(const at::TensorBase& tensor, const c10::Storage& host) {
  auto made = at::detail::make_tensor_base<c10::TensorImpl>(
      c10::Storage(host), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  impl->_set_conj(tensor.is_conj());
  impl->_set_neg(tensor.is_neg());
  return made;
}

Launch::Launch(c10::Stream stream, std::string name) : stream_(stream) {
  auto& all = state();
  std::lock_guard guard(all.lock);
  use_ = launch(all, stream, std::move(name));
}

void Launch::reads(const at::TensorBase& tensor) { reads(block_of(tensor)); }

void Launch::reads(const std::shared_ptr<Block>& block) {
  if (!block) return;
  auto& all = state();
  std::lock_guard guard(all.lock);
  if (!covers(all.streams[use_.stream], block->written)) {
    fail(all, text(use_) + " reads what " + text(block->written) + " writes, without waiting for it");
  }
  auto same = std::find_if(
      block->read.begin(), block->read.end(), [&](const Use& one) { return one.stream == use_.stream; });
  if (same == block->read.end()) {
    block->read.push_back(use_);
  } else {
    *same = use_;
  }
}

void Launch::writes(const at::TensorBase& tensor) { writes(block_of(tensor)); }

void Launch::writes(const std::shared_ptr<Block>& block) {
  if (!block) return;
  auto& all = state();
  std::lock_guard guard(all.lock);
  const Clock& clock = all.streams[use_.stream];
  if (!covers(clock, block->written)) {
    fail(all, text(use_) + " overwrites what " + text(block->written) + " writes, without waiting for it");
  }
  for (const Use& one : block->read) {
    if (!covers(clock, one)) {
      fail(all, text(use_) + " overwrites what " + text(one) + " reads, without waiting for it");
    }
  }
  block->read.clear();
  block->written = use_;
}

c10::Stream current_stream(c10::DeviceIndex device) {
  return stream_of(device, current.at(device));
}

c10::Stream exchange_stream(c10::Stream stream) {
  auto before = current_stream(stream.device_index());
  current.at(stream.device_index()) = stream.id();
  return before;
}

c10::Stream new_stream(c10::DeviceIndex device) {
  auto& all = state();
  std::lock_guard guard(all.lock);
  all.devices.push_back(device);
  all.streams.emplace_back(all.devices.size());
  return stream_of(device, static_cast<c10::StreamId>(all.devices.size()) - kDevices);
}

Clock issued_to(c10::Stream stream) {
  auto& all = state();
  std::lock_guard guard(all.lock);
  return all.streams[number(stream)];
}

Clock issued_to(c10::DeviceIndex device) {
  auto& all = state();
  std::lock_guard guard(all.lock);
  Clock clock;
  for (size_t i = 0; i < all.streams.size(); ++i) {
    if (all.devices[i] == device) join(clock, all.streams[i]);
  }
  return clock;
}

void wait(c10::Stream stream, const Clock& clock) {
  auto& all = state();
  std::lock_guard guard(all.lock);
  join(all.streams[number(stream)], clock);
}

void host_waits(const Clock& clock, const char* counted_as) {
  if (counted_as != nullptr) forbid(std::string("the host waits for ") + counted_as);
  auto& all = state();
  std::lock_guard guard(all.lock);
  join(all.host, clock);
  if (counted_as != nullptr) ++all.waits[counted_as];
}

void record_stream(const c10::DataPtr& pointer, c10::Stream stream) {
  auto block = block_of(pointer);
  auto& all = state();
  std::lock_guard guard(all.lock);
  if (block) block->recorded.push_back(number(stream));
}

Memory& memory(c10::DeviceIndex device) {
  return state().memory.at(device);
}

std::map<std::string, int64_t> waits() {
  auto& all = state();
  std::lock_guard guard(all.lock);
  return all.waits;
}

std::vector<std::string> faults() {
  auto& all = state();
  std::lock_guard guard(all.lock);
  return all.faults;
}

void forget() {
  auto& all = state();
  std::lock_guard guard(all.lock);
  all.waits.clear();
  all.faults.clear();
  all.in_flight.clear();
}

}  // namespace clocked
