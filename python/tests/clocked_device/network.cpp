// The test device's network: each collective goes through gloo on the host, in the order of a stream of its own.
#include "clocks.h"
#include "graphs.h"

#include <pybind11/chrono.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

PYBIND11_DECLARE_HOLDER_TYPE(T, c10::intrusive_ptr<T>, true)

namespace clocked {
namespace {

using Tensors = std::vector<at::Tensor>;
using Gloo = c10::intrusive_ptr<c10d::Backend>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Waiting holds up the current stream and not the host, which is not counted as waiting though gloo does have it wait.
// Operands are held until then, as PyTorch's functional collectives expect it of a network.
struct Issued final : c10d::Work {
  Issued(WorkPtr gloo, c10::DeviceIndex device, Clock end, Tensors operands)
      : gloo(std::move(gloo)), device(device), end(std::move(end)), operands(std::move(operands)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    gloo->wait(timeout);
    clocked::wait(current_stream(device), end);
    operands.clear();
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }
  void blockCurrentStream() override { wait(kNoTimeout); }
  bool isCompleted() override { return gloo->isCompleted(); }
  bool isSuccess() const override { return gloo->isSuccess(); }
  std::exception_ptr exception() const override { return gloo->exception(); }

  WorkPtr gloo;
  c10::DeviceIndex device;
  Clock end;
  Tensors operands;
};

class Network final : public c10d::Backend {
 public:
  explicit Network(Gloo gloo) : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)) {}

  const std::string getBackendName() const override { return "clocked"; }
  void setTimeout(std::chrono::milliseconds timeout) override { gloo_->setTimeout(timeout); }
  void setSequenceNumberForGroup() override { gloo_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return gloo_->getSequenceNumberForGroup(); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    const bool sends = options.rootRank == getRank();
    const Tensors none;
    return run("broadcast", sends ? tensors : none, sends ? none : tensors, [&](Tensors read, Tensors written) {
      return gloo_->broadcast(sends ? read : written, options);
    });
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return run("all_reduce", {}, tensors, [&](Tensors, Tensors all) { return gloo_->allreduce(all, options); });
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return run("all_reduce_coalesced", {}, tensors, [&](Tensors, Tensors all) {
      return gloo_->allreduce_coalesced(all, options);
    });
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return run("reduce", {}, tensors, [&](Tensors, Tensors all) { return gloo_->reduce(all, options); });
  }
  WorkPtr allgather(
      std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return run("all_gather", inputs, outputs.at(0), [&](Tensors read, Tensors written) {
      std::vector<Tensors> lists{written};
      return gloo_->allgather(lists, read, options);
    });
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    return run("all_gather_into_tensor", {input}, {output}, [&](Tensors read, Tensors written) {
      return gloo_->_allgather_base(written[0], read[0], options);
    });
  }
  WorkPtr allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return run("all_gather_into_tensor_coalesced", inputs, outputs, [&](Tensors read, Tensors written) {
      return gloo_->allgather_into_tensor_coalesced(written, read, options);
    });
  }
  WorkPtr _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    return run("reduce_scatter_tensor", {input}, {output}, [&](Tensors read, Tensors written) {
      return gloo_->_reduce_scatter_base(written[0], read[0], options);
    });
  }
  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override {
    return run("reduce_scatter_tensor_coalesced", inputs, outputs, [&](Tensors read, Tensors written) {
      return gloo_->reduce_scatter_tensor_coalesced(written, read, options);
    });
  }
  WorkPtr alltoall_base(
      at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes, std::vector<int64_t>& input_sizes,
      const c10d::AllToAllOptions& options) override {
    return run("all_to_all_single", {input}, {output}, [&](Tensors read, Tensors written) {
      return gloo_->alltoall_base(written[0], read[0], output_sizes, input_sizes, options);
    });
  }
  WorkPtr send(Tensors& tensors, int target, int tag) override {
    return run("send", tensors, {}, [&](Tensors read, Tensors) { return gloo_->send(read, target, tag); });
  }
  WorkPtr recv(Tensors& tensors, int source, int tag) override {
    return run("recv", {}, tensors, [&](Tensors, Tensors written) { return gloo_->recv(written, source, tag); });
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override { return gloo_->barrier(options); }

 private:
  template <typename Issue>
  WorkPtr run(const char* name, const Tensors& read, const Tensors& written, Issue issue) {
    const auto device = (written.empty() ? read : written).at(0).device();
    TORCH_CHECK(device.type() == kType, "`", name, "`: a tensor of ", device, " in the device's network");
    forbid("a collective goes through the host");
    if (!stream_) stream_ = new_stream(device.index());
    wait(*stream_, issued_to(current_stream(device.index())));
    Launch launch(*stream_, name);
    auto seen = [&](const Tensors& tensors, auto note) {
      Tensors found;
      for (const auto& one : tensors) {
        TORCH_CHECK(
            one.device() == stream_->device(), "`", name, "`: a tensor of ", one.device(), " in the network of ",
            stream_->device());
        note(one);
        found.emplace_back(on_host(one, on_host(one.storage())));
      }
      return found;
    };
    auto from = seen(read, [&](const at::Tensor& one) { launch.reads(one); });
    auto to = seen(written, [&](const at::Tensor& one) { launch.writes(one); });
    auto gloo = issue(std::move(from), std::move(to));
    return c10::make_intrusive<Issued>(std::move(gloo), device.index(), issued_to(*stream_), read);
  }

  Gloo gloo_;
  std::optional<c10::Stream> stream_;
};

}  // namespace
}  // namespace clocked

PYBIND11_MODULE(clocked_device, m) {
  m.def("network", [](const clocked::Gloo& gloo) -> clocked::Gloo {
    return c10::make_intrusive<clocked::Network>(gloo);
  });
}
