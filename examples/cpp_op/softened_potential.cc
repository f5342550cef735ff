// SoftenedPotential: 1 / sqrt(r^2 + eps^2), the potential of a unit charge that is smeared out over a length eps, so
// that neither it nor its force is infinite at r = 0 (Plummer's softening). A kernel each for the value and for the
// gradient: dr = dy * -r * (r^2 + eps^2)^(-3/2).

#include <cmath>
#include <cstdint>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

REGISTER_OP("SoftenedPotential")
    .Attr("T: {float, double}")
    .Attr("softening: float = 1.0")
    .Input("r: T")
    .Output("potential: T")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);

REGISTER_OP("SoftenedPotentialGrad")
    .Attr("T: {float, double}")
    .Attr("softening: float = 1.0")
    .Input("r: T")
    .Input("dy: T")
    .Output("dr: T")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);

// Holds what both kernels share: the square of the softening, in their own precision.
template <typename T>
class Softened : public OpKernel {
 public:
  explicit Softened(OpKernelConstruction* context) : OpKernel(context) {
    float softening = 0.0f;
    OP_REQUIRES_OK(context, context->GetAttr("softening", &softening));
    square_ = static_cast<T>(softening) * static_cast<T>(softening);
  }

 protected:
  T square_ = 0;
};

template <typename T>
class SoftenedPotential : public Softened<T> {
 public:
  using Softened<T>::Softened;

  void Compute(OpKernelContext* context) override {
    const Tensor& r = context->input(0);
    Tensor* potential = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, r.shape(), &potential));
    const auto in = r.flat<T>();
    auto out = potential->flat<T>();
    for (std::int64_t i = 0; i < in.size(); ++i) {
      out(i) = T(1) / std::sqrt(in(i) * in(i) + this->square_);
    }
  }
};

template <typename T>
class SoftenedPotentialGrad : public Softened<T> {
 public:
  using Softened<T>::Softened;

  void Compute(OpKernelContext* context) override {
    const Tensor& r = context->input(0);
    const Tensor& dy = context->input(1);
    OP_REQUIRES(context, r.shape() == dy.shape(),
                absl::InvalidArgumentError("r and dy must have one shape"));
    Tensor* dr = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, r.shape(), &dr));
    const auto in = r.flat<T>();
    const auto upstream = dy.flat<T>();
    auto out = dr->flat<T>();
    for (std::int64_t i = 0; i < in.size(); ++i) {
      const T distance = std::sqrt(in(i) * in(i) + this->square_);
      out(i) = -upstream(i) * in(i) / (distance * distance * distance);
    }
  }
};

#define REGISTER(T)                                                                                          \
  REGISTER_KERNEL_BUILDER(Name("SoftenedPotential").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"),     \
                          SoftenedPotential<T>)                                                              \
  REGISTER_KERNEL_BUILDER(Name("SoftenedPotentialGrad").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"), \
                          SoftenedPotentialGrad<T>)
REGISTER(float);
REGISTER(double);
#undef REGISTER

}  // namespace
