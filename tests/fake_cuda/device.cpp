// A CUDA device that computes on the CPU.
//
// Tensors of this device say `cuda:0`, and are dispatched as on a GPU: autograd, autocast and decompositions are those
// of CUDA. Each operator that would start a kernel arrives in `run_on_cpu`, which calls the operator's CPU version with
// tensors that share the memory. As on a GPU, an operator refuses tensors of two devices.

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <atomic>
#include <mutex>
#include <set>

namespace {

using at::Tensor;
using c10::DataPtr;
using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::IValue;
using c10::Storage;
using c10::Stream;
using Stack = torch::jit::Stack;

const Device CPU(DeviceType::CPU);
const Device CUDA(DeviceType::CUDA, 0);

// --- memory ----------------------------------------------------------------------------------------------------------

std::atomic<int64_t> allocated_bytes{0}, peak_bytes{0}, total_bytes{int64_t{1} << 31};

struct Block {
  void* data;
  int64_t size;
};

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  allocated_bytes -= block->size;
  c10::free_cpu(block->data);
  delete block;
}

struct DeviceAllocator final : c10::Allocator {
  DataPtr allocate(size_t size) override {
    auto n_bytes = static_cast<int64_t>(size), after = allocated_bytes += n_bytes;  // other threads free blocks
    if (after > total_bytes) {
      allocated_bytes -= n_bytes;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory: ", size, " bytes more do not fit");
    }
    for (int64_t peak = peak_bytes; peak < after && !peak_bytes.compare_exchange_weak(peak, after);) {
    }
    auto* block = new Block{c10::alloc_cpu(size), n_bytes};
    return {block->data, block, &free_block, CUDA};
  }
  void copy_data(void* target, const void* source, size_t n_bytes) const override {
    default_copy_data(target, source, n_bytes);
  }
} device_allocator;

std::mutex pinned_mutex;
std::set<const void*> pinned_blocks;

void free_pinned(void* data) {
  std::lock_guard lock(pinned_mutex);
  pinned_blocks.erase(data);
  c10::free_cpu(data);
}

struct PinnedAllocator final : c10::Allocator {
  DataPtr allocate(size_t size) override {
    void* data = c10::alloc_cpu(size);
    std::lock_guard lock(pinned_mutex);
    pinned_blocks.insert(data);
    return {data, data, &free_pinned, CPU};
  }
  void copy_data(void* target, const void* source, size_t n_bytes) const override {
    default_copy_data(target, source, n_bytes);
  }
} pinned_allocator;

bool is_pinned(const void* data) {
  std::lock_guard lock(pinned_mutex);
  return pinned_blocks.count(data) > 0;
}

// --- device ----------------------------------------------------------------------------------------------------------

struct DeviceGuard final : c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  Device getDevice() const override { return CUDA; }
  Device exchangeDevice(Device) const override { return CUDA; }
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, CUDA); }
  Stream getNewStream(Device, int) const override { return Stream(Stream::DEFAULT, CUDA); }
  Stream exchangeStream(Stream) const noexcept override { return Stream(Stream::DEFAULT, CUDA); }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};
C10_REGISTER_GUARD_IMPL(CUDA, DeviceGuard)

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return 1; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  c10::Allocator* getCUDADeviceAllocator() const override { return &device_allocator; }
};

// --- operators -------------------------------------------------------------------------------------------------------

// Called before each operator. Returns whether the operator must fail.
using Observer = int (*)(const char* name, int n_tensors, int is_launch, int is_wait);
Observer observer = nullptr;

Tensor make_tensor(const Storage& storage, const Tensor& like, c10::DispatchKey key) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(Storage(storage), c10::DispatchKeySet(key), like.dtype());
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return Tensor(std::move(impl));
}

// A view of an inference tensor is one, too, and a view of another tensor is not.
Tensor make_view(const Tensor& base, const Tensor& like) {
  constexpr auto is_view = c10::TensorImpl::VIEW;
  auto impl = c10::make_intrusive<c10::TensorImpl>(is_view, Storage(base.storage()), base.key_set(), like.dtype());
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return Tensor(std::move(impl));
}

// The tensors of one call: those of the device, and their counterparts on the CPU.
class Call {
 public:
  // Replace tensors and devices in an argument by those of the CPU.
  IValue to_cpu(const IValue& value) {
    if (value.isTensor()) return to_cpu(value.toTensor());
    if (value.isTensorList()) {
      auto tensors = value.toTensorVector();
      for (auto& tensor : tensors) tensor = to_cpu(tensor);
      return tensors;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> tensors;
      for (const std::optional<Tensor>& tensor : value.toOptionalTensorList())
        tensors.push_back(tensor ? std::optional(to_cpu(*tensor)) : std::nullopt);
      return tensors;
    }
    return value.isDevice() && value.toDevice().is_cuda() ? IValue(CPU) : value;
  }

  // Replace tensors of the CPU in a result by those of the device.
  IValue to_cuda(const IValue& value) {
    if (value.isTensor()) return to_cuda(value.toTensor());
    if (!value.isTensorList()) return value;
    auto tensors = value.toTensorVector();
    for (auto& tensor : tensors) tensor = to_cuda(tensor);
    return tensors;
  }

 private:
  Tensor to_cpu(const Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    for (const auto& [given, found] : tensors_)
      if (given.is_same(tensor)) return found;
    auto found = make_tensor(find_storage(tensor.storage()), tensor, c10::DispatchKey::CPU);
    tensors_.emplace_back(tensor, found);
    return found;
  }

  // Return the same memory as a storage of the CPU, one for all tensors that share it.
  Storage find_storage(const Storage& storage) {
    for (const auto& [given, found] : tensors_)
      if (given.storage().is_alias_of(storage)) return found.storage();
    auto* allocator = c10::GetAllocator(DeviceType::CPU);
    return {Storage::use_byte_size_t(), storage.nbytes(), DataPtr(storage.mutable_data(), CPU), allocator, true};
  }

  Tensor to_cuda(const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    for (const auto& [given, found] : tensors_)
      if (found.is_same(tensor)) return follow_resize(given, found);
    for (const auto& [given, found] : tensors_)
      if (found.is_alias_of(tensor)) return make_view(given, tensor);
    return make_tensor(copy_storage(tensor), tensor, c10::DispatchKey::CUDA);
  }

  // Return a tensor that an operator has written to, and perhaps resized.
  Tensor follow_resize(const Tensor& given, const Tensor& found) {
    auto* impl = given.unsafeGetTensorImpl();
    if (found.storage().data() != given.storage().data()) impl->set_storage_keep_dtype(copy_storage(found));
    if (found.sizes() != given.sizes())
      impl->set_sizes_and_strides(found.sizes(), found.strides(), found.storage_offset());
    return given;
  }

  Storage copy_storage(const Tensor& tensor) {
    auto size = tensor.storage().nbytes();
    Storage storage(Storage::use_byte_size_t(), size, device_allocator.allocate(size), &device_allocator, true);
    std::memcpy(storage.mutable_data(), tensor.storage().data(), size);
    return storage;
  }

  std::vector<std::pair<Tensor, Tensor>> tensors_;  // of the device, and of the CPU
};

void append_tensors(const IValue& value, std::vector<Tensor>& tensors) {
  if (value.isTensor() && value.toTensor().defined()) tensors.push_back(value.toTensor());
  if (value.isTensorList())
    for (const Tensor& tensor : value.toTensorVector()) tensors.push_back(tensor);
  if (value.isOptionalTensorList())
    for (const std::optional<Tensor>& tensor : value.toOptionalTensorList())
      if (tensor && tensor->defined()) tensors.push_back(*tensor);
}

// Whether the host waits for the device: it reads values, or a copy is not asynchronous.
bool is_wait(const std::string& name, const Stack& arguments) {
  static const std::set<std::string> readers{
      "aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::_unique2",
      "aten::unique_consecutive", "aten::bincount"};
  if (readers.count(name)) return true;
  if (name == "aten::repeat_interleave") return arguments[1].isNone();  // without the size of the output
  if (name == "aten::_index_put_impl_") {
    std::vector<Tensor> indices;
    append_tensors(arguments[1], indices);
    bool is_filled = arguments[2].toTensor().numel() == 1 && arguments[2].toTensor().is_cpu();
    return std::any_of(indices.begin(), indices.end(), [&](const Tensor& index) {
      return index.is_cpu() || (index.scalar_type() == at::kBool && !is_filled);
    });
  }
  if (name != "aten::copy_") return false;
  const Tensor target = arguments[0].toTensor(), source = arguments[1].toTensor();
  if (target.device() == source.device() || target.numel() == 0) return false;
  bool is_to_pageable = target.is_cpu() && !is_pinned(target.storage().data());
  return is_to_pageable || !arguments[2].toBool();
}

// Refuse what the kernel of a GPU refuses, and that of the CPU accepts.
void check_arguments(const c10::FunctionSchema& schema, const Stack& arguments) {
  if (schema.name() != "aten::native_layer_norm" || arguments[2].isNone()) return;
  const Tensor input = arguments[0].toTensor(), weight = arguments[2].toTensor();
  TORCH_CHECK(input.dtype() == weight.dtype(), "layer norm: input and weight must have the same dtype");
}

void check_devices(const c10::FunctionSchema& schema, const Stack& arguments) {
  static const std::set<std::string> mixing{"aten::copy_", "aten::index", "aten::_index_put_impl_"};
  if (mixing.count(schema.name())) return;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    std::vector<Tensor> tensors;
    append_tensors(arguments[i], tensors);
    for (const Tensor& tensor : tensors)
      TORCH_CHECK(
          tensor.is_cuda() || (tensor.dim() == 0 && !(alias && alias->isWrite())),
          "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu, in ",
          schema.name());
  }
}

// Tell the observer about an operator. Views, allocations and operators on empty tensors launch no kernel.
void observe(const c10::FunctionSchema& schema, const Stack& arguments) {
  std::vector<Tensor> tensors;
  for (const auto& argument : arguments) append_tensors(argument, tensors);
  bool is_empty = std::all_of(tensors.begin(), tensors.end(), [](const Tensor& tensor) { return tensor.numel() == 0; });
  bool is_view = !schema.returns().empty();
  bool is_allocation = schema.name().rfind("aten::empty", 0) == 0 || schema.name() == "aten::resize_";
  for (const auto& returned : schema.returns())
    is_view &= returned.alias_info() != nullptr && !returned.alias_info()->isWrite();
  bool is_launch = !is_view && !is_allocation && (tensors.empty() || !is_empty);
  auto n_tensors = static_cast<int>(tensors.size());
  bool is_error = observer(schema.name().c_str(), n_tensors, is_launch, is_wait(schema.name(), arguments));
  TORCH_CHECK(!is_error, "called a synchronizing CUDA operation: ", schema.name());
}

void run_on_cpu(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  Stack arguments = torch::jit::pop(*stack, schema.arguments().size());
  check_devices(schema, arguments);
  check_arguments(schema, arguments);
  if (observer != nullptr) observe(schema, arguments);
  at::AutoDispatchBelowADInplaceOrView guard;
  Call call;
  for (const auto& argument : arguments) stack->push_back(call.to_cpu(argument));
  op.callBoxed(stack);
  Stack results = torch::jit::pop(*stack, schema.returns().size());
  for (const auto& result : results) stack->push_back(call.to_cuda(result));
}

Tensor& set_storage(
    Tensor& self, Storage source, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_sizes_and_strides(size, stride, offset);
  return self;
}

TORCH_LIBRARY_IMPL(_, CUDA, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  // these have kernels for CUDA, and would be decomposed before they reach the fallback
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    auto op = dispatcher.findSchema(name);
    if (!op || !op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)) continue;
    bool is_list = name.name.rfind("aten::_foreach_", 0) == 0;
    if (is_list || name.name == "aten::copy_" || op->hasKernelForDispatchKey(c10::DispatchKey::CPU))
      library.impl(toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  }
}

}  // namespace

namespace at::native {
// As on a GPU, attention with a mask is that of the efficient kernel, if the width of the heads suits it.
int64_t choose_attention(
    const Tensor& queries, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool,
    std::optional<double>, bool) {
  bool is_aligned = queries.size(-1) % 8 == 0;
  return static_cast<int64_t>(is_aligned ? sdp::SDPBackend::efficient_attention : sdp::SDPBackend::math);
}
REGISTER_CUDA_DISPATCH(_fused_sdp_choice_stub, &choose_attention)
}  // namespace at::native

namespace at {
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, Hooks)
}  // namespace at

extern "C" {
void set_observer(Observer function) { observer = function; }
void set_total_bytes(int64_t n_bytes) { total_bytes = n_bytes; }
int64_t get_total_bytes() { return total_bytes; }
int64_t get_allocated_bytes() { return allocated_bytes; }
int64_t get_peak_bytes() { return peak_bytes; }
void reset_peak_bytes() { peak_bytes = allocated_bytes.load(); }
}
