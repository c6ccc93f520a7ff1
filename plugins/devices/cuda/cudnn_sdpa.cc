/* cudnn_sdpa.cc - attention and its gradient as graphs of cuDNN's, by NVIDIA's cudnn-frontend.
 *
 * cuDNN's own C interface has no causal attention as one operation: its engines know attention by a
 * pattern of some twenty matrix products and operations on elements, which the frontend writes down.
 * All of it is headers, and the one C++ file of the plugin is this one.
 *
 * Nothing is linked. The frontend looks cuDNN's functions up in `cudnn_dlhandle`, which the plugin has
 * opened. It would also open the CUDA runtime, to ask for the GPU and to keep plans alive for graphs
 * that were captured; both are told here (set_sm_version, retention NONE: a prepared kernel outlives its
 * captures), and the driver's context is current before anything is called. So the runtime's version is
 * hidden from the header that would look for one, and no runtime is ever opened.
 *
 * Every tensor is packed ("THD"): a batch of `documents`, of which number b begins `offset[b]` elements
 * from the tensor's address and has `lengths[b]` rows. */
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cuda_runtime.h>
#include <cudnn.h>

#include <cstring>
#include <unordered_map>
#pragma push_macro("CUDART_VERSION")
#undef CUDART_VERSION
#include <cudnn_frontend_shim.h>
#pragma pop_macro("CUDART_VERSION")
#include <cudnn_frontend.h>

#include <dlfcn.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "cuda_digest.h"
#include "cudnn_sdpa.h"

namespace fe = cudnn_frontend;

/* Those before 1.28 size the workspace of backward_add() as if statistics lay row by row: gradients are zero. */
static_assert(CUDNN_FRONTEND_VERSION >= 13200, "cudnn-frontend 1.32 or later is needed");

namespace cudnn_frontend
{
void *cudnn_dlhandle = nullptr;
}

namespace
{

/* Names of tensors for cuDNN: tensor t is UID_TENSOR + t, its offsets UID_OFFSET + t. */
enum : int64_t { UID_TENSOR = 1, UID_OFFSET = 101, UID_LENGTHS_Q = 201, UID_LENGTHS_KV = 202 };

using tensor_t = std::shared_ptr<fe::graph::Tensor_attributes>;

void error_say(char *error, const std::string &text)
{
    const size_t end = text.find_first_of("\r\n");
    (void)std::snprintf(error, CUDNN_SDPA_ERROR_BYTES, "%s", text.substr(0, end).c_str());
}

bool passed(fe::error_t status, char *error)
{
    if (status.is_good()) return true;
    error_say(error, status.get_message());
    return false;
}

tensor_t index_tensor(fe::graph::Graph &graph, int64_t uid, int64_t count)
{
    return graph.tensor(fe::graph::Tensor_attributes()
                            .set_uid(uid)
                            .set_dim({count, 1, 1, 1})
                            .set_stride({1, 1, 1, 1})
                            .set_data_type(fe::DataType_t::INT32));
}

struct layout_t {
    std::vector<int64_t> dim, stride;
};

/* As [documents, heads, rows, width]; the stride of documents is what the offsets stand for. */
layout_t layout_of(const cudnn_sdpa_how_t &how, int t)
{
    if (t == CUDNN_SDPA_LSE)
        return {{how.documents, how.heads, how.rows, 1},
                {how.heads * how.pitch[t], how.pitch[t], 1, 1}};
    const bool value = t == CUDNN_SDPA_V || t == CUDNN_SDPA_Y || t == CUDNN_SDPA_GY ||
                       t == CUDNN_SDPA_GV;
    const bool key = t == CUDNN_SDPA_K || t == CUDNN_SDPA_V || t == CUDNN_SDPA_GK ||
                     t == CUDNN_SDPA_GV;
    const int64_t heads = key ? how.kv_heads : how.heads;
    const int64_t width = value ? how.value_dim : how.head_dim;
    return {{how.documents, heads, how.rows, width},
            {how.rows * how.pitch[t], width, how.pitch[t], 1}};
}

/* Says how a tensor lies, of an input or of an output that an operation has made. */
void tensor_lay(fe::graph::Graph &graph, const cudnn_sdpa_how_t &how, int t, tensor_t &tensor)
{
    const layout_t layout = layout_of(how, t);
    const bool lse = t == CUDNN_SDPA_LSE;
    tensor->set_uid(UID_TENSOR + t)
        .set_dim(layout.dim)
        .set_stride(layout.stride)
        .set_data_type(lse       ? fe::DataType_t::FLOAT
                       : how.f16 ? fe::DataType_t::HALF
                                 : fe::DataType_t::BFLOAT16)
        .set_ragged_offset(index_tensor(graph, UID_OFFSET + t, how.documents + 1));
}

tensor_t tensor_in(fe::graph::Graph &graph, const cudnn_sdpa_how_t &how, int t)
{
    const layout_t layout = layout_of(how, t);
    tensor_t tensor = graph.tensor(fe::graph::Tensor_attributes()
                                       .set_uid(UID_TENSOR + t)
                                       .set_dim(layout.dim)
                                       .set_stride(layout.stride));
    tensor_lay(graph, how, t, tensor);
    return tensor;
}

void tensor_out(fe::graph::Graph &graph, const cudnn_sdpa_how_t &how, int t, tensor_t &tensor)
{
    tensor->set_output(true);
    tensor_lay(graph, how, t, tensor);
}

/* What attention and its gradient have in common. A causal query i sees j <= i; a window of w those with
 * i - j < w, on both sides where attention is full. */
template <typename attributes_t>
void mask_set(fe::graph::Graph &graph, const cudnn_sdpa_how_t &how, attributes_t &attributes)
{
    attributes.set_attn_scale(static_cast<float>(how.scale))
        .set_padding_mask(true)
        .set_seq_len_q(index_tensor(graph, UID_LENGTHS_Q, how.documents))
        .set_seq_len_kv(index_tensor(graph, UID_LENGTHS_KV, how.documents))
        .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT);
    const int window = static_cast<int>(how.window);
    if (window > 0) attributes.set_diagonal_band_left_bound(window);
    if (!how.full) attributes.set_diagonal_band_right_bound(0);
    if (how.full && window > 0) attributes.set_diagonal_band_right_bound(window - 1);
}

/* COMPOSITE: the pattern that every cuDNN 9 knows. Later ones also have a single operation, which the
 * frontend would take where that can do the call, and the pattern where not. */
void forward_add(fe::graph::Graph &graph, const cudnn_sdpa_how_t &how)
{
    const bool stats = how.pitch[CUDNN_SDPA_LSE] != 0;
    auto attributes = fe::graph::SDPA_attributes()
                          .set_name("attention")
                          .set_generate_stats(stats)
                          .set_implementation(fe::AttentionImplementation_t::COMPOSITE);
    mask_set(graph, how, attributes);
    auto [y, lse] = graph.sdpa(tensor_in(graph, how, CUDNN_SDPA_Q),
                               tensor_in(graph, how, CUDNN_SDPA_K),
                               tensor_in(graph, how, CUDNN_SDPA_V), attributes);
    tensor_out(graph, how, CUDNN_SDPA_Y, y);
    if (stats) tensor_out(graph, how, CUDNN_SDPA_LSE, lse);
}

/* Workspaces by the rows that there are, not by documents times rows. */
void backward_add(fe::graph::Graph &graph, const cudnn_sdpa_how_t &how)
{
    auto attributes = fe::graph::SDPA_backward_attributes()
                          .set_name("attention_grad")
                          .set_deterministic_algorithm(how.ordered)
                          .set_max_total_seq_len_q(how.total_rows)
                          .set_max_total_seq_len_kv(how.total_rows);
    mask_set(graph, how, attributes);
    auto [gq, gk, gv] = graph.sdpa_backward(
        tensor_in(graph, how, CUDNN_SDPA_Q), tensor_in(graph, how, CUDNN_SDPA_K),
        tensor_in(graph, how, CUDNN_SDPA_V), tensor_in(graph, how, CUDNN_SDPA_Y),
        tensor_in(graph, how, CUDNN_SDPA_GY), tensor_in(graph, how, CUDNN_SDPA_LSE), attributes);
    tensor_out(graph, how, CUDNN_SDPA_GQ, gq);
    tensor_out(graph, how, CUDNN_SDPA_GK, gk);
    tensor_out(graph, how, CUDNN_SDPA_GV, gv);
}

} // namespace

struct cudnn_sdpa {
    fe::graph::Graph graph;
    std::vector<int64_t> uids; /* of what a run is given, ascending */
    uint32_t variant = 0;
    uint64_t workspace_bytes = 0;
};

namespace
{

/* Plans come best first. A plan's name, by which one that was used before is known, is that of its
 * engine and its knobs: it is known before the plan is built, which may take as long as a compiler. */
bool plan_choose(cudnn_sdpa &s, uint32_t variant, uint64_t limit_bytes, char *error)
{
    const int64_t count = s.graph.get_execution_plan_count();
    error_say(error, variant != 0 ? "cuDNN does not offer the plan that was used before: another "
                                    "GPU, driver or library"
                                  : "cuDNN has no plan for it");
    for (int64_t i = 0; i < count; i++) {
        std::string name;
        if (!s.graph.get_plan_name_at_index(i, name).is_good()) continue;
        const uint32_t digest = cuda_digest(name.data(), name.size());
        if (variant != 0 && digest != variant) continue;
        if (!s.graph.build_plan_at_index(i).is_good()) continue;
        int64_t bytes = 0;
        if (!s.graph.get_workspace_size_plan_at_index(i, bytes).is_good() || bytes < 0) continue;
        if (static_cast<uint64_t>(bytes) > limit_bytes) {
            (void)std::snprintf(error, CUDNN_SDPA_ERROR_BYTES,
                                "cuDNN wants %lld bytes of scratch, %llu are allowed",
                                static_cast<long long>(bytes),
                                static_cast<unsigned long long>(limit_bytes));
            continue;
        }
        s.variant = digest;
        s.workspace_bytes = static_cast<uint64_t>(bytes);
        return true;
    }
    return false;
}

bool graph_make(cudnn_sdpa &s, cudnnHandle_t handle, const cudnn_sdpa_how_t &how, uint32_t variant,
                uint64_t limit_bytes, char *error)
{
    s.graph.set_io_data_type(how.f16 ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT)
        .set_sm_version(how.capability)
        .set_cuda_graph_retention(fe::CudaGraphRetention_t::NONE);
    if (how.backward)
        backward_add(s.graph, how);
    else
        forward_add(s.graph, how);
    if (!passed(s.graph.validate(), error)) return false;
    if (!passed(s.graph.build_operation_graph(handle), error)) return false;
    if (!passed(s.graph.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}),
                error))
        return false;
    if (!passed(s.graph.check_support(), error)) return false;
    if (!plan_choose(s, variant, limit_bytes, error)) return false;
    for (int t = 0; t < CUDNN_SDPA_TENSORS; t++)
        if (how.pitch[t] != 0) s.uids.push_back(UID_TENSOR + t);
    for (int t = 0; t < CUDNN_SDPA_TENSORS; t++)
        if (how.pitch[t] != 0) s.uids.push_back(UID_OFFSET + t);
    s.uids.push_back(UID_LENGTHS_Q);
    s.uids.push_back(UID_LENGTHS_KV);
    return true;
}

void *place_of(const cudnn_sdpa_places_t &places, int64_t uid)
{
    const auto index = [](const int32_t *at) {
        return static_cast<void *>(const_cast<int32_t *>(at));
    };
    if (uid == UID_LENGTHS_Q || uid == UID_LENGTHS_KV) return index(places.lengths);
    if (uid >= UID_OFFSET) return index(places.offset[uid - UID_OFFSET]);
    return places.tensor[uid - UID_TENSOR];
}

/* The frontend throws where a function of cuDNN's is missing. */
template <typename call_t> bool guarded(char *error, call_t call)
{
    try {
        return call();
    } catch (const std::exception &e) {
        error_say(error, e.what());
        return false;
    }
}

} // namespace

size_t cudnn_sdpa_library(void *library)
{
    if (dlsym(library, "cudnnGetVersion") == nullptr ||
        dlsym(library, "cudnnBackendExecute") == nullptr ||
        dlsym(library, "cudnnCreate") == nullptr)
        return 0;
    fe::cudnn_dlhandle = library;
    return fe::detail::get_backend_version();
}

void *cudnn_sdpa_handle_new(char error[CUDNN_SDPA_ERROR_BYTES])
{
    cudnnHandle_t handle = nullptr;
    (void)guarded(error, [&] {
        const cudnnStatus_t status = fe::detail::create_handle(&handle);
        if (status == CUDNN_STATUS_SUCCESS) return true;
        error_say(error, std::string("cudnnCreate says ") + fe::detail::get_error_string(status));
        handle = nullptr;
        return false;
    });
    return handle;
}

void cudnn_sdpa_handle_free(void *handle)
{
    char error[CUDNN_SDPA_ERROR_BYTES];
    (void)guarded(error, [&] {
        return fe::detail::destroy_handle(static_cast<cudnnHandle_t>(handle)) ==
               CUDNN_STATUS_SUCCESS;
    });
}

cudnn_sdpa_t *cudnn_sdpa_new(void *handle, const cudnn_sdpa_how_t *how, uint32_t variant,
                             uint64_t limit_bytes, char error[CUDNN_SDPA_ERROR_BYTES])
{
    std::unique_ptr<cudnn_sdpa> s;
    const bool made = guarded(error, [&] {
        s = std::make_unique<cudnn_sdpa>();
        return graph_make(*s, static_cast<cudnnHandle_t>(handle), *how, variant, limit_bytes,
                          error);
    });
    return made ? s.release() : nullptr;
}

void cudnn_sdpa_free(cudnn_sdpa_t *s)
{
    delete s;
}

uint64_t cudnn_sdpa_workspace(const cudnn_sdpa_t *s)
{
    return s->workspace_bytes;
}

uint32_t cudnn_sdpa_variant(const cudnn_sdpa_t *s)
{
    return s->variant;
}

bool cudnn_sdpa_run(const cudnn_sdpa_t *s, void *handle, void *stream,
                    const cudnn_sdpa_places_t *places, char error[CUDNN_SDPA_ERROR_BYTES])
{
    constexpr size_t MOST = 2 * CUDNN_SDPA_TENSORS + 2;
    void *at[MOST];
    const size_t count = s->uids.size() < MOST ? s->uids.size() : MOST;
    for (size_t i = 0; i < count; i++)
        at[i] = place_of(*places, s->uids[i]);
    return guarded(error, [&] {
        const auto own = static_cast<cudnnHandle_t>(handle);
        if (fe::detail::set_stream(own, static_cast<cudaStream_t>(stream)) !=
            CUDNN_STATUS_SUCCESS) {
            error_say(error, "cudnnSetStream fails");
            return false;
        }
        return passed(s->graph.execute(own, at, static_cast<int>(count), places->workspace), error);
    });
}
