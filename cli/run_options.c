/* run_options.c - the options of `ffpa run`. */
#include "run_options.h"

#include "scalar.h"

#include <string.h>

enum {
    OPT_CAUSAL = OPT_OWN,
    OPT_SCALE,
    OPT_WINDOW,
    OPT_SOFTCAP,
    OPT_DROPOUT,
    OPT_SEED,
    OPT_LSE,
    OPT_GRAD,
    OPT_DTYPE,
    OPT_LAYOUT,
    OPT_EXPECT,
    OPT_SUFFIX,
    OPT_TOLERANCE,
    OPT_MASK,
    OPT_ALIBI,
    OPT_SINK,
    OPT_DOUT,
    OPT_DLSE,
    OPT_NAME = OPT_REPEATED
};

static int read_real(float *value, const char *option, double low, double high)
{
    double number;
    if (!parse_real(optarg, low, high, &number))
        return complain(BAD_USAGE, "%s=%s: a number from %g to %g", option, optarg, low, high);
    *value = (float)number;
    return DONE;
}

static int read_causal(run_options *o)
{
    if (!optarg || strcmp(optarg, "br") == 0)
        o->forward.causal = FFPA_BOTTOM_RIGHT;
    else if (strcmp(optarg, "tl") == 0)
        o->forward.causal = FFPA_TOP_LEFT;
    else
        return complain(BAD_USAGE,
                        "--causal=%s: br (bottom-right, the default) or tl (top-left)", optarg);
    return DONE;
}

static int read_window(run_options *o)
{
    char left[32] = "";
    const char *colon = strchr(optarg, ':');
    if (colon && colon - optarg < (long)sizeof left)
        memcpy(left, optarg, (size_t)(colon - optarg));
    if (!colon || !parse_integer(left, -1, INT64_MAX, &o->forward.window_left) ||
        !parse_integer(colon + 1, -1, INT64_MAX, &o->forward.window_right))
        return complain(BAD_USAGE, "--window %s: write LEFT:RIGHT, -1 for unlimited", optarg);
    o->forward.flags |= FFPA_WINDOW;
    return DONE;
}

static int read_name(run_options *o)
{
    for (int role = 0; role < ROLE_COUNT; role++) {
        size_t n = strlen(ROLE_NAMES[role]);
        if (strncmp(optarg, ROLE_NAMES[role], n) == 0 && optarg[n] == '=') {
            o->names[role] = optarg + n + 1;
            return DONE;
        }
    }
    return complain(BAD_USAGE, "--name %s: write ROLE=NAME, such as q=layers.0.q", optarg);
}

static int read_layout(run_options *o)
{
    o->view.bnhd = strcmp(optarg, "bnhd") == 0;
    if (!o->view.bnhd && strcmp(optarg, "bhnd") != 0)
        return complain(BAD_USAGE, "--layout %s: bhnd or bnhd", optarg);
    return DONE;
}

static int read_dtype(run_options *o)
{
    o->view.dtype = scalar_float_named(optarg);
    return o->view.dtype ? DONE : complain(BAD_USAGE, "--dtype %s: f32, f16 or bf16", optarg);
}

static int take_option(run_options *o, int option)
{
    int code = DONE;
    switch (option) {
    case 'o': o->output = optarg; break;
    case OPT_CAUSAL: return read_causal(o);
    case OPT_SCALE:
        o->forward.flags |= FFPA_SCALE;
        return read_real(&o->forward.scale, "--scale", -1e30, 1e30);
    case OPT_WINDOW: return read_window(o);
    case OPT_SOFTCAP: return read_real(&o->forward.softcap, "--softcap", 0, 1e30);
    case OPT_DROPOUT:
        if (!parse_real(optarg, 0, 1, &o->dropout))
            return complain(BAD_USAGE, "--dropout=%s: a number from 0 to 1", optarg);
        break;
    case OPT_SEED:
        if (!parse_integer(optarg, 0, INT64_MAX, &o->seed))
            return complain(BAD_USAGE, "--seed=%s: a whole number from 0", optarg);
        break;
    case OPT_LSE: o->lse = true; break;
    case OPT_GRAD: o->grad = true; break;
    case OPT_DTYPE: return read_dtype(o);
    case OPT_LAYOUT: return read_layout(o);
    case OPT_NAME: return read_name(o);
    case OPT_EXPECT: o->expect = optarg; break;
    case OPT_SUFFIX: o->expect_suffix = optarg; break;
    case OPT_TOLERANCE:
        if (!parse_real(optarg, 0, 1e30, &o->tolerance))
            return complain(BAD_USAGE, "--tolerance=%s: a number from 0", optarg);
        break;
    case OPT_MASK: o->extra[ROLE_MASK] = optarg; break;
    case OPT_ALIBI: o->extra[ROLE_ALIBI] = optarg; break;
    case OPT_SINK: o->extra[ROLE_SINK] = optarg; break;
    case OPT_DOUT: o->extra[ROLE_DOUT] = optarg; break;
    case OPT_DLSE: o->extra[ROLE_DLSE] = optarg; break;
    default: common_option(&o->common, option, &code); break;
    }
    return code;
}

/* Options that do nothing without another one are a mistake. */
static int check_together(const run_options *o)
{
    const struct {
        bool given, needed;
        const char *option, *other;
    } pairs[] = {{o->seed >= 0, o->dropout >= 0, "--seed", "--dropout"},
                 {o->extra[ROLE_DOUT], o->grad, "--dout", "--grad"},
                 {o->extra[ROLE_DLSE], o->grad, "--dlse", "--grad"},
                 {o->lse, o->output, "--lse", "-o"},
                 {o->expect_suffix, o->expect, "--expect-suffix", "--expect"},
                 {o->tolerance >= 0, o->expect, "--tolerance", "--expect"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i].given && !pairs[i].needed)
            return complain(BAD_USAGE, "%s does nothing without %s", pairs[i].option,
                            pairs[i].other);
    return DONE;
}

static const struct option TABLE[] = {COMMON_OPTIONS,
                                      {"output", required_argument, NULL, 'o'},
                                      {"causal", optional_argument, NULL, OPT_CAUSAL},
                                      {"scale", required_argument, NULL, OPT_SCALE},
                                      {"window", required_argument, NULL, OPT_WINDOW},
                                      {"softcap", required_argument, NULL, OPT_SOFTCAP},
                                      {"dropout", required_argument, NULL, OPT_DROPOUT},
                                      {"seed", required_argument, NULL, OPT_SEED},
                                      {"lse", no_argument, NULL, OPT_LSE},
                                      {"grad", no_argument, NULL, OPT_GRAD},
                                      {"dtype", required_argument, NULL, OPT_DTYPE},
                                      {"layout", required_argument, NULL, OPT_LAYOUT},
                                      {"name", required_argument, NULL, OPT_NAME},
                                      {"expect", required_argument, NULL, OPT_EXPECT},
                                      {"expect-suffix", required_argument, NULL, OPT_SUFFIX},
                                      {"tolerance", required_argument, NULL, OPT_TOLERANCE},
                                      {"mask", required_argument, NULL, OPT_MASK},
                                      {"alibi", required_argument, NULL, OPT_ALIBI},
                                      {"sink", required_argument, NULL, OPT_SINK},
                                      {"dout", required_argument, NULL, OPT_DOUT},
                                      {"dlse", required_argument, NULL, OPT_DLSE},
                                      {NULL, 0, NULL, 0}};

int run_options_read(run_options *o, int argc, char **argv)
{
    *o = (run_options){.common = common_defaults(argc, argv),
                       .forward = ffpa_forward_params_init(),
                       .dropout = -1,
                       .tolerance = -1,
                       .seed = -1};
    memcpy(o->names, ROLE_NAMES, sizeof o->names);
    for (int option; (option = next_option(argc, argv, ":o:", TABLE)) != -1;) {
        int code = take_option(o, option);
        if (code != DONE) return code;
    }
    int code = check_together(o);
    if (!o->expect_suffix) o->expect_suffix = "";
    return code;
}
