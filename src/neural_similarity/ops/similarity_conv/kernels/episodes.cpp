// Few-shot episodes of a chain of convolutions: features, and the gradients of a step.

#include <torch/library.h>

#include "episodes.h"

TORCH_LIBRARY_FRAGMENT(neural_similarity_cpu, library) {
  library.def(
      "episode_features(Tensor images, Tensor[] weights, Tensor[] taps, Tensor[] scales, "
      "Tensor[] shifts, int[] padding, int[] pool) -> Tensor");
  library.def(
      "episode_gradients(Tensor images, Tensor rows, Tensor labels, Tensor[] weights, "
      "Tensor[] taps, Tensor[] scales, Tensor[] shifts, int[] padding, int[] pool, "
      "Tensor classifier, Tensor bias) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(neural_similarity_cpu, CPU, library) {
  library.impl("episode_features", TORCH_FN(episode_features));
  library.impl("episode_gradients", TORCH_FN(episode_gradients));
}
