/* wrong_plugin.c - a plugin that is right (compiled beside this under the name right_plugin), with
 * one thing made wrong when it is loaded. FIXTURE_WRONG names the function here that does it. */
#include <fcntl.h>
#include <stdlib.h>

#include <longhaul/plugin.h>

extern const lh_plugin_t right_plugin;

#ifndef FIXTURE_CALLED
#define FIXTURE_CALLED FIXTURE_NAME
#endif

LH_EXTERN LH_EXPORT lh_plugin_t lh_plugin_v1;
lh_plugin_t lh_plugin_v1 = {LH_PLUGIN_HEADER, .kind = FIXTURE_KIND, .config_size = 4096,
                            .name = FIXTURE_CALLED};
#define it lh_plugin_v1

enum { MOST = 64 };
static lh_model_api_t model;
static lh_optimizer_api_t optimizer;
static lh_device_api_t device;
static lh_transport_api_t transport;
static lh_option_t options[MOST];
static lh_kernel_t kernels[MOST];
static lh_op_t ops[MOST];
static lh_rule_t rules[MOST];
static const lh_host_t *the_host;

static void copy_tables(void)
{
    const lh_plugin_t head = it;
    it = right_plugin;
    memcpy(&it, &head, offsetof(lh_plugin_t, version));
#define COPY(field)                                                            \
    if (it.field##_count > 0)                                                  \
        memcpy(field##s, it.field##s, it.field##_count * sizeof(field##s[0])); \
    it.field##s = field##s
    COPY(option);
    COPY(kernel);
    COPY(op);
    COPY(rule);
    if (it.model != NULL) model = *it.model, it.model = &model;
    if (it.optimizer != NULL) optimizer = *it.optimizer, it.optimizer = &optimizer;
    if (it.device != NULL) device = *it.device, it.device = &device;
    if (it.transport != NULL) transport = *it.transport, it.transport = &transport;
}

/* ---- any kind; the right one is an optimizer ---- */

LH_UNUSED static void nothing(void)
{
}

LH_UNUSED static void a_name_of_its_own(void)
{
}

LH_UNUSED static void a_symbol_more(void)
{
}

LH_UNUSED static void a_symbol_of_nobody(void)
{
}

LH_UNUSED static void a_default_out_of_range(void)
{
    options[0].fallback = "1";
}

LH_UNUSED static void a_key_of_the_hosts(void)
{
    options[0].key = "clip";
}

LH_UNUSED static void a_help_with_a_stop(void)
{
    options[0].help = "gradients that are summed at a time.";
}

LH_UNUSED static void a_choice_of_anything(void)
{
    options[0].type = LH_OPT_CHOICE;
    options[0].range = "one|surely/no:value";
    options[0].fallback = "one";
}

LH_FUNCTION(u64, falls, (u64, tokens))
{
    volatile uint64_t *nowhere = (uint64_t *)(uintptr_t)tokens;
    return *nowhere;
}

LH_UNUSED static void a_function_that_crashes(void)
{
    static const lh_function_t functions[] = {LH_FUNCTION_ENTRY(falls, "crashes")};
    it.functions = functions;
    it.function_size = sizeof(functions[0]);
    it.function_count = 1;
}

static lh_status_t open_and_leave_a_file(const lh_host_t *host, const void *config,
                                         lh_optimizer_t **out)
{
    if (open("/dev/null", O_RDONLY) < 0) return LH_IO;
    return right_plugin.optimizer->open(host, config, out);
}

LH_UNUSED static void a_file_left_open(void)
{
    optimizer.open = open_and_leave_a_file;
}

static lh_status_t open_without_looking(const lh_host_t *host, const void *config,
                                        lh_optimizer_t **out)
{
    char *memory = host->alloc(host, 64, 64);
    memory[0] = 1;
    host->release(host, memory);
    return right_plugin.optimizer->open(host, config, out);
}

LH_UNUSED static void an_alloc_not_looked_at(void)
{
    optimizer.open = open_without_looking;
}

static lh_status_t open_unless_stopping(const lh_host_t *host, const void *config,
                                        lh_optimizer_t **out)
{
    void *memory = host->alloc(host, 64, 64);
    if (memory == NULL) return LH_NO_MEMORY;
    if (host->stopping(host)) return LH_CANCELLED;
    host->release(host, memory);
    return right_plugin.optimizer->open(host, config, out);
}

LH_UNUSED static void a_leak_when_stopping(void)
{
    optimizer.open = open_unless_stopping;
}

/* ---- optimizers ---- */

static lh_space_t spaces[MOST];
static lh_move_t moves[MOST];

static void copy_description(lh_description_t *d)
{
    memcpy(spaces, d->spaces, d->space_count * sizeof(spaces[0]));
    memcpy(moves, d->moves, d->move_count * sizeof(moves[0]));
    d->spaces = spaces;
    d->moves = moves;
}

static lh_status_t describe_what_is_not_built(lh_optimizer_t *o, const lh_train_t *train,
                                              lh_description_t *out)
{
    const lh_status_t status = right_plugin.optimizer->describe(o, train, out);
    copy_description(out);
    moves[0].when = 77;
    return status;
}

LH_UNUSED static void a_moment_that_is_none(void)
{
    optimizer.describe = describe_what_is_not_built;
}

static lh_status_t slice_all(lh_optimizer_t *o, uint32_t space, uint32_t param, uint32_t rank,
                             lh_slice_t *out)
{
    (void)o, (void)space, (void)param, (void)rank;
    *out = (lh_slice_t){0, 24};
    return LH_OK;
}

LH_UNUSED static void slices_that_overlap(void)
{
    optimizer.slice = slice_all;
}

/* ---- models ---- */

static lh_param_t params[MOST];

static lh_status_t describe_one_more(lh_model_t *m, lh_model_info_t *out)
{
    const lh_status_t status = right_plugin.model->describe(m, out);
    memcpy(params, out->params, out->param_count * sizeof(params[0]));
    params[out->param_count] = params[1];
    params[out->param_count].name = "never_used";
    params[out->param_count].hf_name = NULL;
    out->params = params;
    out->param_count++;
    return status;
}

LH_UNUSED static void a_parameter_never_used(void)
{
    model.describe = describe_one_more;
}

static uint64_t rows_of(lh_graph_t *g, lh_value_t y)
{
    lh_arg_t shape = {0};
    return g->api->shape(g, y, &shape) == LH_OK ? shape.shape[0] : 0;
}

static lh_value_t record_in_turn(lh_model_t *m, lh_graph_t *g, uint32_t part, uint32_t block,
                                 lh_value_t x)
{
    static uint32_t times;
    const lh_value_t y = right_plugin.model->record(m, g, part, block, x);
    if (part != LH_PART_BLOCK || rows_of(g, y) != 7) return y;
    return times++ % 5 == 3 ? lh_activate(g, y, LH_ACT_TANH) : y;
}

LH_UNUSED static void a_recording_that_varies(void)
{
    model.record = record_in_turn;
}

/* What is trained is not what is scored. */
static lh_value_t record_at_first(lh_model_t *m, lh_graph_t *g, uint32_t part, uint32_t block,
                                  lh_value_t x)
{
    static uint32_t times;
    const lh_value_t y = right_plugin.model->record(m, g, part, block, x);
    if (part != LH_PART_BLOCK || rows_of(g, y) != 16) return y;
    return times++ < 2 ? lh_activate(g, y, LH_ACT_TANH) : y;
}

LH_UNUSED static void a_training_of_its_own(void)
{
    model.record = record_at_first;
}

static lh_value_t record_what_follows(lh_model_t *m, lh_graph_t *g, uint32_t part, uint32_t block,
                                      lh_value_t x)
{
    const lh_attention_t how = {
        .struct_size = sizeof(how), .heads = 1, .kv_heads = 1, .head_dim = 8, .full = 1};
    lh_arg_t shape = {0};
    const lh_value_t y = right_plugin.model->record(m, g, part, block, x);
    if (part != LH_PART_BLOCK || g->api->shape(g, y, &shape) != LH_OK) return y;
    lh_attention_t wide = how;
    wide.head_dim = (uint32_t)shape.shape[1];
    return lh_add(g, y, lh_attend(g, y, y, y, &wide));
}

LH_UNUSED static void a_look_ahead(void)
{
    model.record = record_what_follows;
}

static lh_status_t describe_one_way(lh_model_t *m, lh_model_info_t *out)
{
    const lh_status_t status = right_plugin.model->describe(m, out);
    memcpy(params, out->params, out->param_count * sizeof(params[0]));
    for (uint32_t i = 0; i < out->param_count; i++)
        if (params[i].part == LH_PART_BLOCK && params[i].shape[0] == params[i].shape[1])
            params[i].hf_export = params[i].hf_export == NULL ? "transpose(source, out)" : NULL;
    out->params = params;
    return status;
}

LH_UNUSED static void an_export_that_is_no_inverse(void)
{
    model.describe = describe_one_way;
}

/* ---- devices; the right one is the reference ---- */

static lh_status_t claim_words(lh_device_t *d, lh_device_properties_t *out)
{
    const lh_status_t status = right_plugin.device->properties(d, out);
    out->flags |= LH_DEVICE_WORDS;
    return status;
}

LH_UNUSED static void words_without_functions(void)
{
    device.properties = claim_words;
}

static lh_status_t alloc_anything(lh_device_t *d, uint32_t space, uint64_t bytes, lh_memory_t **out,
                                  void **address)
{
    return right_plugin.device->alloc(d, space, bytes > (uint64_t)1 << 40 ? 64 : bytes, out,
                                      address);
}

LH_UNUSED static void memory_without_end(void)
{
    device.alloc = alloc_anything;
}

static lh_status_t copy_half(lh_stream_t *s, const lh_place_t *to, const lh_place_t *from,
                             uint64_t bytes)
{
    return right_plugin.device->copy(s, to, from, bytes == 1 << 20 ? bytes / 2 : bytes);
}

LH_UNUSED static void copies_of_a_half(void)
{
    device.copy = copy_half;
}

LH_UNUSED static void a_row_for_no_op(void)
{
    for (uint32_t i = 0; i < it.kernel_count; i++)
        if (strcmp(kernels[i].op, "scale_update") == 0 || i == it.kernel_count - 1)
            kernels[i].op = "nobody.knows";
}

LH_UNUSED static void no_row_for_copy(void)
{
    for (uint32_t i = 0; i < it.kernel_count; i++)
        if (strcmp(kernels[i].op, "copy") == 0) kernels[i] = kernels[--it.kernel_count];
}

static lh_kernel_t *row_of(const char *op)
{
    for (uint32_t i = 0; i < it.kernel_count; i++)
        if (strcmp(kernels[i].op, op) == 0) return &kernels[i];
    abort();
}

static lh_kernel_t right_row; /* of what wrong_launch stands for */

static lh_status_t launch_and_add(lh_prepared_t *k, const lh_launch_t *call)
{
    const lh_status_t status = right_row.launch(k, call);
    *(uint8_t *)call->args[call->arg_count - 1].address ^= 0xff;
    ((uint8_t *)call->args[call->arg_count - 1].address)[1] ^= 0x7f;
    return status;
}

LH_UNUSED static void a_wrong_sum(void)
{
    lh_kernel_t *row = row_of("activate");
    right_row = *row;
    row->launch = launch_and_add;
}

static uint64_t behind_row; /* bytes; 0: rows lie side by side */

static lh_status_t prepare_and_look(const lh_host_t *host, lh_device_t *d,
                                    const lh_kernel_desc_t *desc, lh_kernel_plan_t *plan,
                                    lh_prepared_t **out)
{
    const lh_arg_t *y = &desc->args[desc->arg_count - 1];
    const uint64_t size = y->dtype == LH_DTYPE_BF16 ? 2 : y->dtype == LH_DTYPE_F64 ? 8 : 4;
    behind_row = y->stride[0] > y->shape[1] ? y->shape[1] * size : 0;
    return right_row.prepare(host, d, desc, plan, out);
}

static lh_status_t launch_and_spill(lh_prepared_t *k, const lh_launch_t *call)
{
    const lh_status_t status = right_row.launch(k, call);
    if (behind_row != 0) ((uint8_t *)call->args[call->arg_count - 1].address)[behind_row] = 0;
    return status;
}

LH_UNUSED static void a_byte_between_rows(void)
{
    lh_kernel_t *row = row_of("activate");
    right_row = *row;
    row->prepare = prepare_and_look;
    row->launch = launch_and_spill;
}

static lh_status_t prepare_without_add(const lh_host_t *host, lh_device_t *d,
                                       const lh_kernel_desc_t *desc, lh_kernel_plan_t *plan,
                                       lh_prepared_t **out)
{
    lh_arg_t args[LH_MAX_SLOTS];
    lh_kernel_desc_t other = *desc;
    memcpy(args, desc->args, desc->arg_count * sizeof(args[0]));
    for (uint32_t i = 0; i < desc->arg_count; i++)
        args[i].flags &= ~(uint32_t)LH_ARG_ADD;
    other.args = args;
    return right_row.prepare(host, d, &other, plan, out);
}

LH_UNUSED static void gradients_that_replace(void)
{
    lh_kernel_t *row = row_of("layer_norm_grad");
    right_row = *row;
    row->prepare = prepare_without_add;
}

static lh_status_t launch_and_drift(lh_prepared_t *k, const lh_launch_t *call)
{
    static uint32_t drift;
    const lh_status_t status = right_row.launch(k, call);
    *(uint8_t *)call->args[call->arg_count - 1].address ^= (uint8_t)(drift++ & 1);
    return status;
}

LH_UNUSED static void bits_that_drift(void)
{
    lh_kernel_t *row = row_of("activate");
    right_row = *row;
    row->launch = launch_and_drift;
}

/* ---- transports ---- */

static lh_status_t open_transport(const lh_host_t *host, const void *config, lh_transport_t **out)
{
    the_host = host;
    return right_plugin.transport->open(host, config, out);
}

static lh_status_t claim_encryption(lh_transport_t *t, uint32_t nic, lh_nic_info_t *info)
{
    const lh_status_t status = right_plugin.transport->nic_info(t, nic, info);
    info->flags |= LH_CAN_ENCRYPT;
    return status;
}

LH_UNUSED static void a_lock_without_a_key(void)
{
    transport.nic_info = claim_encryption;
}

static lh_status_t send_less(lh_conn_t *c, lh_region_t *region, const void *data, uint64_t bytes,
                             uint32_t tag, uint64_t cookie)
{
    return right_plugin.transport->isend(c, region, data, bytes == 4097 ? 4096 : bytes, tag,
                                         cookie);
}

LH_UNUSED static void a_byte_short(void)
{
    transport.isend = send_less;
}

static lh_status_t send_or_forget(lh_conn_t *c, lh_region_t *region, const void *data,
                                  uint64_t bytes, uint32_t tag, uint64_t cookie)
{
    const lh_status_t status = right_plugin.transport->isend(c, region, data, bytes, tag, cookie);
    return status == LH_AGAIN && bytes == 300 ? LH_OK : status;
}

LH_UNUSED static void sends_that_are_forgotten(void)
{
    transport.isend = send_or_forget;
}

static void cancel_nothing(lh_conn_t *c)
{
    (void)c;
}

LH_UNUSED static void a_cancel_that_waits(void)
{
    transport.cancel = cancel_nothing;
}

static lh_status_t always_asleep(lh_transport_t *t)
{
    (void)t;
    return LH_OK;
}

static lh_status_t dead_descriptor(lh_transport_t *t, int *fd)
{
    static int pipes[2] = {-1, -1};
    (void)t;
    if (pipes[0] < 0 && posix_openpt(O_RDWR) < 0) return LH_IO;
    if (pipes[0] < 0) pipes[0] = posix_openpt(O_RDWR | O_NOCTTY);
    *fd = pipes[0];
    return LH_OK;
}

LH_UNUSED static void a_sleep_without_end(void)
{
    transport.arm = always_asleep;
    transport.wait_fd = dead_descriptor;
}

static lh_status_t connect_anywhere(lh_transport_t *t, const lh_address_t *address,
                                    const lh_conn_params_t *how, lh_conn_t **out)
{
    if (address->length % 26 == 0 && address->length > 500) abort();
    return right_plugin.transport->connect(t, address, how, out);
}

LH_UNUSED static void an_address_that_kills(void)
{
    transport.open = open_transport;
    transport.connect = connect_anywhere;
}

/* ---- ops and rules ---- */

static void cost_nothing(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                         lh_cost_t *out)
{
    (void)attributes, (void)args, (void)arg_count;
    LH_FILL(lh_cost_t, out, .flops = -1);
}

LH_UNUSED static void an_op_that_pays(void)
{
    ops[0].cost = cost_nothing;
}

static void gradient_as_it_comes(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                                 const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    (void)g, (void)attributes, (void)forward;
    if (wanted[0]) into[0] = from[0];
}

LH_UNUSED static void a_gradient_as_it_comes(void)
{
    ops[0].gradient = gradient_as_it_comes;
}

LH_UNUSED static void a_kernel_that_is_off(void)
{
    for (uint32_t i = 0; i < it.kernel_count; i++)
        if (strcmp(kernels[i].device, "cpu") == 0 && kernels[i].dtypes[0] == LH_DTYPE_F32) {
            right_row = kernels[i];
            kernels[i].launch = launch_and_add;
            return;
        }
}

LH_UNUSED static void two_states_of_a_name(void)
{
    static lh_rule_state_t states[2];
    memcpy(states, rules[0].states, sizeof(states));
    memcpy(states[1].name, states[0].name, sizeof(states[0].name));
    rules[0].states = states;
}

static lh_value_t record_scaled(const void *config, lh_graph_t *g, const lh_piece_t *piece,
                                lh_value_t grad, lh_value_t master, lh_value_t *states,
                                lh_value_t *value)
{
    static const float half = 0.5f;
    const lh_value_t y = right_plugin.rules[0].record(config, g, piece, grad, master, states,
                                                      value);
    const lh_value_t in[] = {y, g->api->constant(g, &half, 1)};
    return g->api->op(g, "scale", NULL, in, 2, NULL);
}

LH_UNUSED static void a_rule_that_never_waits(void)
{
    rules[0].record = record_scaled;
}

static lh_value_t record_by_place(const void *config, lh_graph_t *g, const lh_piece_t *piece,
                                  lh_value_t grad, lh_value_t master, lh_value_t *states,
                                  lh_value_t *value)
{
    lh_piece_t other = *piece;
    other.decay *= piece->begin == 0 ? 1 : 2;
    return right_plugin.rules[0].record(config, g, &other, grad, master, states, value);
}

LH_UNUSED static void a_grain_that_lies(void)
{
    rules[0].record = record_by_place;
}

static lh_value_t record_by_dtype(const void *config, lh_graph_t *g, const lh_piece_t *piece,
                                  lh_value_t grad, lh_value_t master, lh_value_t *states,
                                  lh_value_t *value)
{
    lh_piece_t other = *piece;
    other.decay *= piece->value_dtype == LH_DTYPE_F32 ? 2 : 1;
    return right_plugin.rules[0].record(config, g, &other, grad, master, states, value);
}

LH_UNUSED static void another_decay_in_f32(void)
{
    rules[0].record = record_by_dtype;
}

#ifdef FIXTURE_EXPORTS
LH_EXPORT extern int another_symbol;
int another_symbol = 1;
#endif
#ifdef FIXTURE_IMPORTS
extern int nobody_has_this(void);
int (*wanted_by_nobody)(void) = nobody_has_this;
#endif

__attribute__((constructor)) static void make_wrong(void)
{
    copy_tables();
    FIXTURE_WRONG();
}
