// The test device as PyTorch sees it: guard, generator, allocator, and the kernels of the processor on its memory.
#include "clocks.h"
#include "graphs.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

// Declared here, since their headers include all of PyTorch's operators.
namespace at::native {
TORCH_API void resize_bytes_cpu(StorageImpl* storage, size_t size_bytes);
}
namespace at::autocast {
TORCH_API at::ScalarType get_autocast_dtype(at::DeviceType device_type);
}

namespace clocked {
namespace {

thread_local c10::DeviceIndex current_device = 0;

c10::DeviceIndex valid(c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < kDevices, "there is no device ", static_cast<int>(device));
  return device;
}

c10::DeviceIndex or_current(c10::DeviceIndex device) {
  return device < 0 ? current_device : valid(device);
}

struct Event {
  Clock clock;
  std::chrono::steady_clock::time_point time;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device getDevice() const override { return c10::Device(kType, current_device); }
  void setDevice(c10::Device device) const override { current_device = valid(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = device.index(); }
  c10::Device exchangeDevice(c10::Device device) const override {
    return c10::Device(kType, std::exchange(current_device, or_current(device.index())));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device device) const override { return current_stream(or_current(device.index())); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(kType, or_current(device.index())));
  }
  c10::Stream getNewStream(c10::Device device, int) const override { return new_stream(or_current(device.index())); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  bool queryStream(const c10::Stream& stream) const override {
    host_waits(issued_to(stream), nullptr);
    return true;
  }
  void synchronizeStream(const c10::Stream& stream) const override { host_waits(issued_to(stream), "stream"); }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    host_waits(issued_to(or_current(device)), "device");
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    *static_cast<Event*>(*event) = {issued_to(stream), std::chrono::steady_clock::now()};
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) wait(stream, static_cast<Event*>(event)->clock);
  }
  bool queryEvent(void* event) const override {
    if (event != nullptr) host_waits(static_cast<Event*>(event)->clock, nullptr);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) host_waits(static_cast<Event*>(event)->clock, "event");
  }
  double elapsedTime(void* first, void* last, c10::DeviceIndex) const override {
    const auto between = static_cast<Event*>(last)->time - static_cast<Event*>(first)->time;
    return std::chrono::duration<double, std::milli>(between).count();
  }
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override {
    record_stream(pointer, stream);
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t size) override { return clocked::allocate(current_stream(current_device), size); }
  void copy_data(void* target, const void* source, size_t size) const override { std::memcpy(target, source, size); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override { record_stream(pointer, stream); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto& total = stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    total.current = static_cast<int64_t>(memory(device).now);
    total.peak = static_cast<int64_t>(memory(device).peak);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override { memory(device).peak = memory(device).now; }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    constexpr size_t kBytes = size_t{1} << 30;
    return {kBytes - memory(device).now, kBytes};
  }
};

Allocator& allocator() {
  static auto* made = new Allocator;
  return *made;
}

// The processor's kind, of which each device has its own.
at::Generator& generator(c10::DeviceIndex device) {
  static auto* made = [] {
    auto* all = new std::vector<at::Generator>;
    while (all->size() < kDevices) all->push_back(at::detail::createCPUGenerator());
    return all;
  }();
  return made->at(or_current(device));
}

// Memory of the host that a device reads by itself. It is given out once, so that what is still to be copied stays.
struct Pinned final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    auto* data = static_cast<char*>(std::aligned_alloc(64, std::max<size_t>(64, (size + 63) / 64 * 64)));
    std::lock_guard guard(lock_);
    blocks_[data] = size;
    return {data, data, [](void*) {}, c10::kCPU};
  }
  void copy_data(void* target, const void* source, size_t size) const override { std::memcpy(target, source, size); }
  bool has(const void* data) {
    std::lock_guard guard(lock_);
    auto next = blocks_.upper_bound(static_cast<const char*>(data));
    if (next == blocks_.begin()) return false;
    const auto& [start, size] = *std::prev(next);
    return static_cast<const char*>(data) < start + std::max<size_t>(size, 1);
  }

 private:
  std::mutex lock_;
  std::map<const char*, size_t> blocks_;
};

Pinned& pinned() {
  static auto* made = new Pinned;
  return *made;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(c10::DeviceIndex device) const override { current_device = valid(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return std::exchange(current_device, valid(device));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned(); }
  bool isPinnedPtr(const void* data) const override { return pinned().has(data); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    c10::DeviceGuard guard(storage.device());
    at::native::resize_bytes_cpu(storage.unsafeGetStorageImpl(), size);
  }
};

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

// Types that the device is to have no tensors of.
std::set<at::ScalarType> lacking;

at::ScalarType known(std::optional<at::ScalarType> dtype) {
  const auto type = at::dtype_or_default(dtype);
  TORCH_CHECK(!lacking.count(type), "this device does not support ", type);
  return type;
}

at::Tensor empty(
    at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(device.value_or(c10::Device(kType, current_device)));
  return at::detail::empty_generic(size, &allocator(), kKeys, known(dtype), format);
}

at::Tensor empty_strided(
    at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(device.value_or(c10::Device(kType, current_device)));
  return at::detail::empty_strided_generic(size, stride, &allocator(), kKeys, known(dtype));
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(self.device());
  return at::native::resize_(self, size, format);
}

std::atomic<int64_t> copies_from_host = 0;

void copy_on_host(const at::Tensor& source, const at::Tensor& target) {
  at::AutoDispatchBelowADInplaceOrView guard;
  auto seen = [](const at::Tensor& one) {
    return one.is_privateuseone() ? at::Tensor(on_host(one, on_host(one.storage()))) : one;
  };
  seen(target).copy_(seen(source));
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  const bool from = source.is_privateuseone(), to = target.is_privateuseone();
  auto device = (from ? source : target).device().index();
  auto stream = current_stream(device);
  if (from && to && source.device() != target.device()) {
    // Both streams take part, as in copies between two devices of CUDA.
    auto other = current_stream(target.device().index());
    wait(stream, issued_to(other));
    Launch launch(stream, "aten::copy_");
    launch.reads(source);
    launch.writes(target);
    wait(other, issued_to(stream));
  } else {
    Launch launch(stream, "aten::copy_");
    if (from) launch.reads(source);
    if (to) launch.writes(target);
  }
  // Without pinned memory a copy blocks in any case.
  const bool blocks = !non_blocking || !(from ? target : source).is_pinned(kType);
  if (!from) ++copies_from_host;
  if (!from || !to) forbid("a copy between host and device");
  if (!to && blocks) host_waits(issued_to(stream), "copy to host");
  if (!from && blocks) host_waits(issued_to(stream), "copy from host");
  keep(target);
  copy_on_host(source, target);
  if (capturing()) {
    record([source = pinned_down(source), target = pinned_down(target)] { copy_from(source, target, true); }, {});
  }
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, false);
}

void record_stream_of(at::Tensor& self, c10::Stream stream) {
  record_stream(self.storage().data_ptr(), stream);
}

// One call of a kernel of the processor, whose tensors stand for those of the device.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : op_(op), stack_(stack), name_(op.schema().name()), first_(stack.size() - op.schema().arguments().size()) {}

  void run() {
    for (const auto& value : arguments()) find_device(value);
    require_single_rate();
    if (op_.hasTag(at::Tag::nondeterministic_seeded)) forbid("`" + name_ + "` draws numbers");
    const auto& schema = op_.schema();
    for (size_t i = 0; i < schema.arguments().size(); ++i) {
      const auto* alias = schema.arguments()[i].alias_info();
      take(stack_[first_ + i], (alias != nullptr && alias->isWrite()) || writes_unsaid(i));
    }
    auto stream = current_stream(device_);
    Launch launch(stream, name_);
    if (!is_view()) {
      for (const auto& one : pairs_) one.written ? launch.writes(one.device) : launch.reads(one.device);
    }
    if (shows_host()) host_waits(issued_to(stream), name_.c_str());
    c10::DeviceGuard guard(c10::Device(kType, device_));
    for (const auto& one : pairs_) {
      if (one.written) keep(one.device);
    }
    run_on_host();
    for (auto& one : pairs_) {
      if (one.written) follow(one, stream, launch.use());
    }
    for (size_t i = first_; i < stack_.size(); ++i) give(stack_[i], stream, launch.use());
  }

  bool is_view() const {
    for (const auto& one : op_.schema().returns()) {
      if (one.alias_info() != nullptr && !one.alias_info()->isWrite()) return true;
    }
    return false;
  }

 private:
  struct Pair {
    at::Tensor device, host;
    bool written;
  };

  c10::ArrayRef<c10::IValue> arguments() const {
    return c10::ArrayRef<c10::IValue>(stack_).slice(first_);
  }

  static bool is_own(const c10::IValue& value) {
    return value.isTensor() && value.toTensor().is_privateuseone();
  }

  void find_device(const c10::IValue& value) {
    if (value.isList()) {
      for (const c10::IValue& one : value.toListRef()) find_device(one);
    } else if (is_own(value)) {
      auto found = value.toTensor().device().index();
      TORCH_CHECK(
          !has_tensor_ || found == device_, "`", name_, "`: tensors on ", c10::Device(kType, device_), " and ",
          c10::Device(kType, found), " in one kernel");
      has_tensor_ = true;
      device_ = found;
    } else if (value.isDevice() && value.toDevice().type() == kType && !has_tensor_) {
      device_ = or_current(value.toDevice().index());
    }
  }

  at::Tensor taken(const at::Tensor& tensor, bool written, bool in_list) {
    if (!tensor.defined()) return tensor;
    if (!tensor.is_privateuseone()) {
      const bool is_number = tensor.is_cpu() && tensor.dim() == 0 && !written && takes_numbers(in_list);
      TORCH_CHECK(
          !has_tensor_ || is_number, "`", name_, "`: a tensor of ", tensor.device(), " of shape ", tensor.sizes(),
          in_list ? " in a list" : "", " in a kernel of ", c10::Device(kType, device_));
      return tensor;
    }
    TORCH_CHECK(tensor.layout() == at::kStrided, "`", name_, "`: only strided tensors are on this device");
    for (auto& one : pairs_) {
      if (one.device.is_same(tensor)) {
        one.written |= written;
        return one.host;
      }
    }
    auto same = std::find_if(pairs_.begin(), pairs_.end(), [&](const Pair& one) {
      return one.device.storage().is_alias_of(tensor.storage());
    });
    const auto storage = same == pairs_.end() ? on_host(tensor.storage()) : same->host.storage();
    pairs_.push_back({tensor, at::Tensor(on_host(tensor, storage)), written});
    return pairs_.back().host;
  }

  void take(c10::IValue& value, bool written) {
    if (value.isTensor()) {
      value = taken(value.toTensor(), written, false);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& one : value.toTensorVector()) list.push_back(taken(one, written, true));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& one : value.toOptionalTensorVector()) {
        list.push_back(one ? std::optional(taken(*one, written, true)) : one);
        counts_elements_ |= one && (one->scalar_type() == at::kBool || one->scalar_type() == at::kByte);
      }
      value = list;
    } else if (value.isDevice() && value.toDevice().type() == kType) {
      value = c10::Device(c10::kCPU);
    }
  }

  // Whether CUDA takes numbers that are tensors of the host: lists of them go one by one, but not to fused optimizers.
  bool takes_numbers(bool in_list) const {
    const bool by_list = name_.rfind("aten::_foreach_", 0) == 0;
    if (in_list) return by_list;
    return !(by_list && name_.rfind("aten::_foreach_add", 0) == 0);
  }

  // The running statistics that batch norm writes are not marked in its schema.
  bool writes_unsaid(size_t argument) const {
    return name_ == "aten::native_batch_norm" && (argument == 3 || argument == 4);
  }

  // CUDA's fused optimizers read a rate that is a tensor of the device as a number in single precision.
  void require_single_rate() const {
    if (name_.rfind("aten::_fused_", 0) != 0) return;
    const auto position = op_.schema().argumentIndexWithName("lr");
    const bool own = position && is_own(stack_[first_ + static_cast<size_t>(*position)]);
    TORCH_CHECK(
        !own || stack_[first_ + static_cast<size_t>(*position)].toTensor().scalar_type() == at::kFloat, "`", name_,
        "`: expected scalar type Float for `lr`");
  }

  // Whether the host goes on only when it knows the result, or its shape.
  bool shows_host() const {
    return op_.hasTag(at::Tag::data_dependent_output) || op_.hasTag(at::Tag::dynamic_output_shape) || counts_elements_;
  }

  void run_on_host() {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto op = on_processor();
    const auto keys = c10::DispatchKeySet(c10::DispatchKey::CPU);
    if (!op_.hasTag(at::Tag::nondeterministic_seeded)) return op.redispatchBoxed(keys, &stack_);
    // What draws takes its numbers from the device's generator.
    auto host = at::detail::getDefaultCPUGenerator();
    const auto before = host.get_state();
    host.set_state(generator(device_).get_state());
    op.redispatchBoxed(keys, &stack_);
    generator(device_).set_state(host.get_state());
    host.set_state(before);
  }

  // Convolutions have other names on devices that PyTorch does not know.
  c10::OperatorHandle on_processor() {
    if (name_ == "aten::convolution_overrideable") return named("aten::convolution");
    if (name_ != "aten::convolution_backward_overrideable") return op_;
    const auto& weight = stack_[first_ + 2].toTensor();
    const bool transposed = stack_[first_ + 6].toBool();
    const int64_t biases = transposed ? weight.size(1) * stack_[first_ + 8].toInt() : weight.size(0);
    stack_.insert(stack_.begin() + static_cast<std::ptrdiff_t>(first_ + 3), c10::List<int64_t>{biases});
    return named("aten::convolution_backward");
  }

  static c10::OperatorHandle named(const char* name) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  }

  c10::Storage adopted(const c10::Storage& host, c10::Stream stream, const Use& use) {
    return {c10::Storage::use_byte_size_t(), host.nbytes(), adopt(stream, use, host), &allocator(), true};
  }

  // What a kernel has done to the shape and the memory of a tensor that it writes.
  void follow(Pair& one, c10::Stream stream, const Use& use) {
    const auto& host = one.host.storage();
    auto& device = one.device.storage();
    if (host.data() != device.data()) {
      device.set_data_ptr_noswap(adopt(stream, use, host));
      device.set_nbytes(host.nbytes());
    }
    if (one.host.sizes() != one.device.sizes() || one.host.strides() != one.device.strides()) {
      one.device.unsafeGetTensorImpl()->set_sizes_and_strides(
          one.host.sizes(), one.host.strides(), one.host.storage_offset());
    }
  }

  at::Tensor given(const at::Tensor& found, c10::Stream stream, const Use& use) {
    if (!found.defined()) return found;
    for (const auto& one : pairs_) {
      if (one.host.is_same(found)) return one.device;
    }
    c10::Storage storage;
    for (const auto& one : pairs_) {
      if (one.host.storage().is_alias_of(found.storage())) storage = one.device.storage();
    }
    for (const auto& one : made_) {
      if (one.first.is_alias_of(found.storage())) storage = one.second;
    }
    if (!storage) {
      storage = adopted(found.storage(), stream, use);
      made_.emplace_back(found.storage(), storage);
    }
    auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), kKeys, found.dtype());
    auto* impl = made.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(found.sizes(), found.strides(), found.storage_offset());
    impl->_set_conj(found.is_conj());
    impl->_set_neg(found.is_neg());
    return made;
  }

  void give(c10::IValue& value, c10::Stream stream, const Use& use) {
    if (value.isTensor()) {
      value = given(value.toTensor(), stream, use);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& one : value.toTensorVector()) list.push_back(given(one, stream, use));
      value = list;
    }
  }

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  std::string name_;
  size_t first_;
  c10::DeviceIndex device_ = current_device;
  bool has_tensor_ = false;
  bool counts_elements_ = false;
  std::vector<Pair> pairs_;
  std::vector<std::pair<c10::Storage, c10::Storage>> made_;
};

// Applies something to each tensor of a value.
template <typename Act>
void visit(const c10::IValue& value, Act act) {
  if (value.isTensor()) act(value.toTensor());
  if (value.isTensorList()) {
    for (const at::Tensor& one : value.toTensorVector()) act(one);
  }
}

c10::IValue value_pinned_down(const c10::IValue& value) {
  if (value.isTensor()) return pinned_down(value.toTensor());
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> list;
  for (const at::Tensor& one : value.toTensorVector()) list.push_back(pinned_down(one));
  return list;
}

// Puts what a replayed kernel has made where the captured one was to put it.
void put(const std::vector<at::Tensor>& again, const std::vector<at::Tensor>& made) {
  for (size_t i = 0; i < made.size(); ++i) {
    if (!made[i].defined() || made[i].storage().is_alias_of(again[i].storage())) continue;
    copy_from(again[i], made[i], true);
  }
}

void capture_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto first = static_cast<std::ptrdiff_t>(stack->size() - op.schema().arguments().size());
  torch::jit::Stack given;
  std::transform(stack->begin() + first, stack->end(), std::back_inserter(given), value_pinned_down);
  Call call(op, *stack);
  call.run();
  if (call.is_view()) return;
  auto tensors = [](const torch::jit::Stack& values, std::ptrdiff_t from) {
    std::vector<at::Tensor> found;
    for (auto it = values.begin() + from; it != values.end(); ++it) {
      visit(*it, [&](const at::Tensor& one) { found.push_back(pinned_down(one)); });
    }
    return found;
  };
  auto made = tensors(*stack, first);
  std::vector<at::Tensor> fresh = made;
  for (const auto& value : given) {
    visit(value, [&](const at::Tensor& one) {
      auto same = [&](const at::Tensor& own) { return own.defined() && one.defined() && own.is_alias_of(one); };
      fresh.erase(std::remove_if(fresh.begin(), fresh.end(), same), fresh.end());
    });
  }
  record(
      [op, given, made, tensors] {
        torch::jit::Stack again = given;
        Call(op, again).run();
        put(tensors(again, 0), made);
      },
      fresh);
}

void run_by_processor(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (capturing()) return capture_kernel(op, stack);
  Call(op, *stack).run();
}

// `torch.autocast`, for the few operations that tests use under it.
void cast_and_run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::AutocastPrivateUse1);
  const auto dtype = at::autocast::get_autocast_dtype(kType);
  for (auto it = stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size()); it != stack->end(); ++it) {
    if (it->isTensor() && it->toTensor().defined() && it->toTensor().scalar_type() == at::kFloat) {
      *it = it->toTensor().to(dtype);
    }
  }
  op.callBoxed(stack);
}

// Updates of a whole list of parameters become kernels of its own, as CUDA has them.
void fuse_optimizers() {
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  for (const char* name : {"_fused_adamw_", "_fused_adamw_.tensor_lr"}) {
    library->impl(name, torch::CppFunction::makeFromBoxedFunction<&run_by_processor>());
  }
}

const bool registered = [] {
  c10::SetAllocator(kType, &allocator());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_by_processor>());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  m.impl("linear", torch::CppFunction::makeFromBoxedFunction<&cast_and_run>());
  m.impl("matmul", torch::CppFunction::makeFromBoxedFunction<&cast_and_run>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize_);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  m.impl("set_.source_Storage", &at::native::set_);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("set_", &at::native::set_cpu_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("record_stream", &record_stream_of);
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&run_by_processor>());
  m.impl("convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&run_by_processor>());
  // As on CUDA a list is one kernel, which takes no tensors of the host in it.
  for (const auto& op : c10::Dispatcher::singleton().getAllOpNames()) {
    if (op.name.rfind("aten::_foreach_", 0) == 0) {
      auto name = op.overload_name.empty() ? op.name : op.name + "." + op.overload_name;
      m.impl(name.substr(6).c_str(), torch::CppFunction::makeFromBoxedFunction<&run_by_processor>());
    }
  }
}

// A kernel that a driver launches on a stream of the current device, by the addresses that it takes. It is called through code that knows no
// exceptions: what is wrong is among the faults.
extern "C" void clocked_launch(void* stream, const char* name, unsigned int count, void** addresses, const bool* written) {
  try {
    const auto id = static_cast<c10::StreamId>(reinterpret_cast<intptr_t>(stream));
    Launch launch(c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, current_device), id), name);
    for (unsigned int index = 0; index < count; ++index) {
      if (addresses[index] == nullptr) continue;
      auto block = block_at(addresses[index]);
      written[index] ? launch.writes(block) : launch.reads(block);
    }
  } catch (const std::exception&) {
  }
}

// What tests ask of it, by `torch.ops`.
TORCH_LIBRARY(clocked, m) {
  m.def("waits() -> Dict(str, int)", [] {
    c10::Dict<std::string, int64_t> found;
    for (const auto& [name, count] : waits()) found.insert(name, count);
    return found;
  });
  m.def("faults() -> str[]", [] { return faults(); });
  m.def("forget() -> ()", [] {
    forget();
    copies_from_host = 0;
  });
  m.def("register_graphs() -> ()", &register_graphs);
  m.def("captures() -> int", &captures);
  m.def("replays() -> int", &replays);
  m.def("lack(ScalarType type) -> ()", [](at::ScalarType type) { lacking.insert(type); });
  m.def("copies_from_host() -> int", [] { return copies_from_host.load(); });
  m.def("fuse_optimizers() -> ()", &fuse_optimizers);
  m.def("seed(int device, int seed) -> ()", [](int64_t device, int64_t seed) {
    generator(static_cast<c10::DeviceIndex>(device)).set_current_seed(static_cast<uint64_t>(seed));
  });
  m.def("generator_state(int device) -> Tensor", [](int64_t device) {
    return generator(static_cast<c10::DeviceIndex>(device)).get_state();
  });
  m.def("set_generator_state(int device, Tensor state) -> ()", [](int64_t device, const at::Tensor& state) {
    generator(static_cast<c10::DeviceIndex>(device)).set_state(state);
  });
}

}  // namespace clocked
