"""What is asked, as the library's structs without pointers. Built once for a layout and kept: a later call with
the same shapes, strides, dtypes and options copies the structs and fills in where the data is."""
import ctypes
from typing import NamedTuple, Optional, Tuple

from . import _abi
from ._library import check, context, lib, new, unsupported


class Options(NamedTuple):
    """Everything of a call that is not a tensor. Hashable: part of the key under which a problem is kept."""

    scale: Optional[float] = None
    causal: int = _abi.FFPA_CAUSAL_NONE
    window: Optional[Tuple[int, int]] = None
    softcap: float = 0.0
    dropout_p: float = 0.0
    deterministic: bool = False
    forward_backend: str = "auto"
    backward_backend: str = "auto"
    max_q: int = 0  # of packed sequences; hints
    max_k: int = 0
    batch: int = 0


class Tensors(NamedTuple):
    """The inputs of a call, [B, H, N, D] where they are tensors of rows. Any kind of array; None = absent."""

    q: object
    k: object
    v: object
    mask: object = None
    alibi: object = None
    sink: object = None
    rng: object = None  # two 64-bit integers on the device of q: dropout's seed and offset
    cu_q: object = None
    cu_k: object = None
    lengths: object = None
    batch_index: object = None
    block_table: object = None
    k_new: object = None
    v_new: object = None


class Layout(NamedTuple):
    """Of one array: codes of the library, sizes and strides in elements."""

    dtype: int
    device: int
    shape: Tuple[int, ...]
    stride: Tuple[int, ...]


VIEWS = ("q", "k", "v", "mask", "alibi", "sink")  # fields of Tensors that are 4-D views in the params


def output_layout(q, dv, dtype=None):
    """Of o, or of a gradient like q: dense, its heads and rows in the order in which those of q lie."""
    b, h, n, _ = q.shape
    rows_first = q.stride[1] < q.stride[2]
    stride = (h * n * dv, dv, h * dv, 1) if rows_first else (h * n * dv, n * dv, dv, 1)
    return Layout(q.dtype if dtype is None else dtype, q.device, (b, h, n, dv), stride)


def dense_layout(like, dtype=None):
    stride, step = [], 1
    for size in reversed(like.shape):
        stride.insert(0, step)
        step *= size
    return Layout(like.dtype if dtype is None else dtype, like.device, tuple(like.shape), tuple(stride))


def set_layout(tensor, layout):
    """All but the address, which a tensor need not have to be planned for."""
    tensor.shape[:], tensor.stride[:] = layout.shape, layout.stride
    tensor.dtype, tensor.device = layout.dtype, layout.device


def _index_dtype(*layouts):
    codes = {l.dtype for l in layouts if l is not None}
    if len(codes) > 1:
        raise unsupported("ffpa: the index arrays of a call (offsets, lengths, pages) must share one dtype, int32 or int64")
    return codes.pop() if codes else _abi.FFPA_I32


class Slot:
    """One call's structs: filled with pointers, run, and kept for a later call."""

    def __init__(self, problem):
        p = self.params = _abi.ffpa_forward_params.from_buffer_copy(problem.params)
        self.ref = ctypes.byref(p)
        self.views = [(Tensors._fields.index(name), getattr(p, name)) for name in problem.views]
        self.o, self.lse = p.o, p.lse
        self.sides = {}
        for name, template in problem.sides.items():
            side = self.sides[name] = type(template).from_buffer_copy(template)
            setattr(p, name, ctypes.addressof(side))

    def bind(self, tensors, pointer):
        for at, view in self.views:
            view.data = pointer(tensors[at])
        if self.sides:
            self.bind_sides(tensors, pointer)

    def bind_sides(self, tensors, pointer):
        if "dropout" in self.sides:
            side = self.sides["dropout"]
            side.seed_ptr = pointer(tensors.rng)
            side.offset_ptr = side.seed_ptr + 8
        if "varlen" in self.sides:
            side = self.sides["varlen"]
            side.cu_q = None if tensors.cu_q is None else pointer(tensors.cu_q)
            side.cu_k = None if tensors.cu_k is None else pointer(tensors.cu_k)
        if "kv_cache" in self.sides:
            side = self.sides["kv_cache"]
            for name in ("lengths", "batch_index", "block_table"):
                if getattr(tensors, name) is not None:  # an empty one has no address, and is there all the same
                    setattr(side, name, pointer(getattr(tensors, name)) or ctypes.addressof(side))
            for name in ("k_new", "v_new"):
                if getattr(tensors, name) is not None:
                    getattr(side, name).data = pointer(getattr(tensors, name))


class BackwardSlot:
    def __init__(self, problem):
        self.forward = Slot(problem.forward)
        g = self.params = _abi.ffpa_backward_params.from_buffer_copy(problem.params)
        g.forward = ctypes.addressof(self.forward.params)
        self.ref = ctypes.byref(g)
        self.dout, self.dlse = g.dout, g.dlse
        self.outputs = [(name, getattr(g, name)) for name in problem.outputs]


class _Slots:
    """Takes a slot nobody else uses: calls on several threads each get their own."""

    slot_type = Slot

    def take(self):
        try:
            return self.spare.pop()
        except IndexError:
            return self.slot_type(self)

    def give(self, slot):
        self.spare.append(slot)


class Problem(_Slots):
    """Of forward. `layouts` has the same fields as Tensors. `memory` knows the kind of array, `like` is one of them."""

    def __init__(self, layouts, options, want_lse, memory, like):
        self.spare = []
        p = self.params = new(_abi.ffpa_forward_params, softcap=options.softcap, causal=options.causal)
        if options.scale is not None:
            p.flags |= _abi.FFPA_SCALE
            p.scale = options.scale
        if options.window is not None:
            p.flags |= _abi.FFPA_WINDOW
            p.window_left, p.window_right = options.window
        if options.deterministic:
            p.flags |= _abi.FFPA_DETERMINISTIC
        for name in VIEWS:
            layout = getattr(layouts, name)
            if layout is not None:
                set_layout(getattr(p, name), layout)
        self.views = [name for name in VIEWS if getattr(layouts, name) is not None]
        lse_dtype = _abi.FFPA_F64 if layouts.q.dtype == _abi.FFPA_F64 else _abi.FFPA_F32
        self.o = output_layout(layouts.q, layouts.v.shape[3])
        self.lse = dense_layout(Layout(lse_dtype, self.o.device, self.o.shape[:3] + (1,), ()))
        set_layout(p.o, self.o)
        if want_lse:
            set_layout(p.lse, self.lse)
        self.packed = layouts.cu_q is not None or layouts.cu_k is not None
        self.sides = {}
        if layouts.rng is not None:
            self.sides["dropout"] = new(_abi.ffpa_dropout, p=options.dropout_p)
        if self.packed:
            self.sides["varlen"] = new(_abi.ffpa_varlen, batch=options.batch, max_q=options.max_q, max_k=options.max_k,
                                       index_dtype=_index_dtype(layouts.cu_q, layouts.cu_k))
        if layouts.lengths is not None:
            self.sides["kv_cache"] = self._cache(layouts)
        self.context = context(options.forward_backend)
        self.path = self.new_work = None
        self.new_o = memory.maker(self.o, like, self.packed)
        self.new_lse = memory.maker(self.lse, like, self.packed) if want_lse else None

    @staticmethod
    def _cache(layouts):
        cache = new(_abi.ffpa_kv_cache,
                    index_dtype=_index_dtype(layouts.lengths, layouts.batch_index, layouts.block_table))
        if layouts.block_table is not None:
            cache.table_stride, cache.table_width = layouts.block_table.stride[0], layouts.block_table.shape[1]
        for name in ("k_new", "v_new"):
            if getattr(layouts, name) is not None:
                set_layout(getattr(cache, name), getattr(layouts, name))
        return cache

    def plan(self, slot, memory, like):
        """Ask, with the first call's slot, how it will run and what workspace it wants."""
        report = new(_abi.ffpa_report)
        check(lib.ffpa_forward_supported(self.context, slot.ref, ctypes.byref(report)))
        self.path = report.path.decode()
        self.new_work = memory.work_maker(report.workspace_bytes, like)


class BackwardProblem(_Slots):
    """Of backward: forward's problem and what comes with it. `wanted` are the names of the outputs asked for."""

    slot_type = BackwardSlot

    def __init__(self, forward, layouts, options, dout, dlse, wanted):
        self.forward, self.spare = forward, []
        g = self.params = new(_abi.ffpa_backward_params)
        set_layout(g.dout, dout)
        if dlse is not None:
            set_layout(g.dlse, dlse)
        self.outputs = {}
        for name in wanted:
            source = getattr(layouts, name[1:])
            if name in ("dmask", "dsink"):
                layout = dense_layout(source)
            else:
                layout = output_layout(source, source.shape[3])
            self.outputs[name] = layout
            set_layout(getattr(g, name), layout)
        self.context = context(options.backward_backend)
        self.path = self.new_work = None

    def plan(self, slot, memory, like):
        report = new(_abi.ffpa_report)
        check(lib.ffpa_backward_supported(self.context, slot.ref, ctypes.byref(report)))
        self.path = report.path.decode()
        self.new_work = memory.work_maker(report.workspace_bytes, like)
        self.makers = {name: memory.maker(layout, like, self.forward.packed) for name, layout in self.outputs.items()}


class Kept:
    """A bounded dictionary of problems; the oldest leaves. Races cost a rebuild, never a wrong answer."""

    def __init__(self, limit=512):
        self.limit, self.entries = limit, {}
        self.get = self.entries.get

    def put(self, key, value):
        while len(self.entries) >= self.limit:
            try:
                del self.entries[next(iter(self.entries))]
            except (KeyError, StopIteration, RuntimeError):  # another thread was faster
                break
        self.entries[key] = value
        return value
