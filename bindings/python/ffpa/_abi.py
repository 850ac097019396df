"""ctypes mirror of ffpa.h, made by tools/gen_ctypes.py."""
import ctypes

FFPA_VERSION_MAJOR = 0
FFPA_VERSION_MINOR = 1
FFPA_VERSION_PATCH = 0
FFPA_HOST = 0
FFPA_SCALE = 0x1
FFPA_WINDOW = 0x2
FFPA_DETERMINISTIC = 0x4
FFPA_MAX_LENGTHS = 32
FFPA_OK = 0
FFPA_E_INVALID = 1
FFPA_E_UNSUPPORTED = 2
FFPA_E_NO_DEVICE = 3
FFPA_E_OUT_OF_MEMORY = 4
FFPA_E_WORKSPACE = 5
FFPA_E_COMPILE = 6
FFPA_E_DRIVER = 7
FFPA_E_NEWER = 8
FFPA_E_INTERNAL = 9
FFPA_F32 = 1
FFPA_F16 = 2
FFPA_BF16 = 3
FFPA_F64 = 4
FFPA_BOOL = 5
FFPA_I32 = 6
FFPA_I64 = 7
FFPA_E4M3 = 8
FFPA_E5M2 = 9
FFPA_STRICT = 0
FFPA_ALLOW_SLOW = 1
FFPA_LOG_ERROR = 1
FFPA_LOG_INFO = 2
FFPA_LOG_DEBUG = 3
FFPA_CAUSAL_NONE = 0
FFPA_TOP_LEFT = 1
FFPA_BOTTOM_RIGHT = 2
FFPA_FORWARD = 1
FFPA_BACKWARD = 2


class ffpa_tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("shape", ctypes.c_int64 * 4),
        ("stride", ctypes.c_int64 * 4),
        ("dtype", ctypes.c_int32),
        ("device", ctypes.c_int32),
    ]


class ffpa_context_options(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("backend", ctypes.c_char_p),
        ("cpu_isa", ctypes.c_char_p),
        ("policy", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("alloc", ctypes.c_void_p),
        ("free", ctypes.c_void_p),
        ("alloc_user", ctypes.c_void_p),
        ("log", ctypes.c_void_p),
        ("log_user", ctypes.c_void_p),
        ("cache_dir", ctypes.c_char_p),
        ("cache_mode", ctypes.c_char_p),
        ("nvrtc_path", ctypes.c_char_p),
    ]


class ffpa_dropout(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("p", ctypes.c_float),
        ("reserved", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
        ("seed_ptr", ctypes.c_void_p),
        ("offset_ptr", ctypes.c_void_p),
    ]


class ffpa_varlen(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("batch", ctypes.c_int64),
        ("cu_q", ctypes.c_void_p),
        ("cu_k", ctypes.c_void_p),
        ("index_dtype", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("max_q", ctypes.c_int64),
        ("max_k", ctypes.c_int64),
    ]


class ffpa_kv_cache(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("lengths", ctypes.c_void_p),
        ("batch_index", ctypes.c_void_p),
        ("block_table", ctypes.c_void_p),
        ("table_stride", ctypes.c_int64),
        ("table_width", ctypes.c_int64),
        ("index_dtype", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("k_new", ffpa_tensor),
        ("v_new", ffpa_tensor),
    ]


class ffpa_quant(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("q_descale", ffpa_tensor),
        ("k_descale", ffpa_tensor),
        ("v_descale", ffpa_tensor),
        ("block_rows", ctypes.c_int64),
    ]


class ffpa_row_subset(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("count", ctypes.c_int64),
        ("rows", ctypes.c_void_p),
    ]


class ffpa_forward_params(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("flags", ctypes.c_uint32),
        ("causal", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("window_left", ctypes.c_int64),
        ("window_right", ctypes.c_int64),
        ("q", ffpa_tensor),
        ("k", ffpa_tensor),
        ("v", ffpa_tensor),
        ("o", ffpa_tensor),
        ("lse", ffpa_tensor),
        ("mask", ffpa_tensor),
        ("alibi", ffpa_tensor),
        ("sink", ffpa_tensor),
        ("dropout", ctypes.c_void_p),
        ("varlen", ctypes.c_void_p),
        ("kv_cache", ctypes.c_void_p),
        ("quant", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_size_t),
        ("workspace_limit_bytes", ctypes.c_size_t),
    ]


class ffpa_backward_params(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("forward", ctypes.c_void_p),
        ("dout", ffpa_tensor),
        ("dlse", ffpa_tensor),
        ("dq", ffpa_tensor),
        ("dk", ffpa_tensor),
        ("dv", ffpa_tensor),
        ("dmask", ffpa_tensor),
        ("dsink", ffpa_tensor),
        ("stream", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_size_t),
        ("workspace_limit_bytes", ctypes.c_size_t),
    ]


class ffpa_merge_params(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("o_a", ffpa_tensor),
        ("lse_a", ffpa_tensor),
        ("o_b", ffpa_tensor),
        ("lse_b", ffpa_tensor),
        ("o", ffpa_tensor),
        ("lse", ffpa_tensor),
        ("stream", ctypes.c_void_p),
    ]


class ffpa_problem(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("op", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("b", ctypes.c_int64),
        ("hq", ctypes.c_int64),
        ("hk", ctypes.c_int64),
        ("nq", ctypes.c_int64),
        ("nk", ctypes.c_int64),
        ("d", ctypes.c_int64),
        ("dv", ctypes.c_int64),
        ("causal", ctypes.c_int32),
        ("has_window", ctypes.c_int32),
        ("window_left", ctypes.c_int64),
        ("window_right", ctypes.c_int64),
        ("mask_dtype", ctypes.c_int32),
        ("mask_axes", ctypes.c_uint32),
        ("softcap", ctypes.c_float),
        ("dropout", ctypes.c_float),
        ("scale", ctypes.c_float),
        ("has_scale", ctypes.c_int32),
        ("alibi", ctypes.c_int32),
        ("sink", ctypes.c_int32),
        ("bnhd", ctypes.c_int32),
        ("n_lengths", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("page", ctypes.c_int64),
        ("lengths", ctypes.c_int64 * 32),
    ]


class ffpa_report(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("workspace_bytes", ctypes.c_size_t),
        ("flop", ctypes.c_double),
        ("bytes", ctypes.c_double),
        ("tile_q", ctypes.c_int32),
        ("tile_k", ctypes.c_int32),
        ("tile_d", ctypes.c_int32),
        ("splits", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("path", ctypes.c_char * 64),
        ("refusals", ctypes.c_char * 1024),
    ]


def declare(lib):
    """Set result and argument types of every function of the library."""
    lib.ffpa_status_name.restype = ctypes.c_char_p
    lib.ffpa_status_name.argtypes = [ctypes.c_int32]
    lib.ffpa_status_text.restype = ctypes.c_char_p
    lib.ffpa_status_text.argtypes = [ctypes.c_int32]
    lib.ffpa_last_error.restype = ctypes.c_char_p
    lib.ffpa_last_error.argtypes = []
    lib.ffpa_last_path.restype = ctypes.c_char_p
    lib.ffpa_last_path.argtypes = []
    lib.ffpa_version.restype = ctypes.c_uint32
    lib.ffpa_version.argtypes = []
    lib.ffpa_context_create.restype = ctypes.c_int32
    lib.ffpa_context_create.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    lib.ffpa_context_destroy.restype = None
    lib.ffpa_context_destroy.argtypes = [ctypes.c_void_p]
    lib.ffpa_forward.restype = ctypes.c_int32
    lib.ffpa_forward.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    lib.ffpa_forward_workspace.restype = ctypes.c_int32
    lib.ffpa_forward_workspace.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    lib.ffpa_backward.restype = ctypes.c_int32
    lib.ffpa_backward.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    lib.ffpa_backward_workspace.restype = ctypes.c_int32
    lib.ffpa_backward_workspace.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    lib.ffpa_merge.restype = ctypes.c_int32
    lib.ffpa_merge.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    lib.ffpa_problem_parse.restype = ctypes.c_int32
    lib.ffpa_problem_parse.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    lib.ffpa_problem_format.restype = ctypes.c_int32
    lib.ffpa_problem_format.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    lib.ffpa_forward_supported.restype = ctypes.c_int32
    lib.ffpa_forward_supported.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    lib.ffpa_backward_supported.restype = ctypes.c_int32
    lib.ffpa_backward_supported.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    lib.ffpa_explain.restype = ctypes.c_int32
    lib.ffpa_explain.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    lib.ffpa_context_describe.restype = ctypes.c_char_p
    lib.ffpa_context_describe.argtypes = [ctypes.c_void_p]
    lib.ffpa_prebuild.restype = ctypes.c_int32
    lib.ffpa_prebuild.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
    lib.ffpa_plan_forward.restype = ctypes.c_int32
    lib.ffpa_plan_forward.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    lib.ffpa_plan_backward.restype = ctypes.c_int32
    lib.ffpa_plan_backward.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    lib.ffpa_plan_destroy.restype = None
    lib.ffpa_plan_destroy.argtypes = [ctypes.c_void_p]
    lib.ffpa_plan_run_forward.restype = ctypes.c_int32
    lib.ffpa_plan_run_forward.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    lib.ffpa_plan_run_backward.restype = ctypes.c_int32
    lib.ffpa_plan_run_backward.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    lib.ffpa_plan_report.restype = ctypes.c_int32
    lib.ffpa_plan_report.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return lib
