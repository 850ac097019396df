"""Rules that do not depend on the kind of array: options as plain numbers, and how heads meet."""
import operator

from . import _abi
from ._library import FfpaError, invalid, unsupported, wrong_type
from ._problem import Options

_ALIGNED = {None: _abi.FFPA_TOP_LEFT, "top_left": _abi.FFPA_TOP_LEFT, "bottom_right": _abi.FFPA_BOTTOM_RIGHT}
_FARTHEST = 2**40  # no sequence is longer


def number(name, value):
    """A float that changes with nothing else: options are part of the keys under which problems are kept."""
    if isinstance(value, float):
        return value
    if getattr(value, "requires_grad", False):
        raise wrong_type("ffpa: %s.requires_grad is set; it is read as a number, which has no gradient (detach it)" % name)
    if hasattr(value, "__float__") and not isinstance(value, complex):
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError):  # an array of several
            pass
    raise wrong_type("ffpa: %s is a %s, not a number" % (name, type(value).__name__))


def flag(name, value):
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and value in (0, 1) or type(value).__module__ == "numpy" and value.dtype.name == "bool":
        return bool(value)
    raise wrong_type("ffpa: %s is a %s, not a bool" % (name, type(value).__name__))


def _window(value):
    if value is None:
        return None
    try:
        left, right = [max(-1, min(operator.index(keys), _FARTHEST)) for keys in value]
    except (TypeError, ValueError):
        raise wrong_type("ffpa: window=%r is not a pair of whole numbers (left, right)" % (value,)) from None
    return left, right


def backends_of(name, value):
    if not isinstance(value, str):
        raise wrong_type("ffpa: %s is a %s, not a str" % (name, type(value).__name__))
    names = [part.strip() for part in value.split(",")]
    if not all(names):
        raise invalid("ffpa: %s=%r has an empty name" % (name, value))
    return ",".join(names)


def options_of(extra, dropout_p, is_causal, scale, masked=False, lengths=None):
    """Options from the arguments of a public function. `masked`: there is a mask; `lengths`: of query and key,
    which a window needs for its centre."""
    dropout_p, causal, align = number("dropout_p", dropout_p), flag("is_causal", is_causal), extra.causal_align
    if not 0.0 <= dropout_p <= 1.0:
        raise invalid("dropout probability has to be between 0 and 1, but got %s" % dropout_p)
    if align is not None and not isinstance(align, str) or align not in _ALIGNED:
        raise invalid("ffpa: causal_align=%r is neither 'top_left' nor 'bottom_right'" % (align,))
    if masked and causal and align is None:
        raise invalid("Explicit attn_mask should not be set when is_causal=True (causal_align=... permits both)")
    window = _window(extra.window)
    if window is not None and align == "top_left" and not causal and lengths is not None and lengths[0] != lengths[1]:
        raise unsupported("ffpa: window=%s with causal_align='top_left' needs is_causal=True where query and key have "
                          "different lengths" % (window,))
    return Options(None if scale is None else number("scale", scale), _ALIGNED[align] if causal else _abi.FFPA_CAUSAL_NONE,
                   window, number("softcap", extra.softcap), dropout_p, flag("deterministic", extra.deterministic),
                   backends_of("forward_backend", extra.forward_backend), backends_of("backward_backend", extra.backward_backend))


def first_that_can(backends, attempt):
    """attempt(name) for the first of "name,name" that supports the call; what the last one says is raised."""
    *others, last = backends.split(",")
    for name in others:
        try:
            return attempt(name)
        except FfpaError as error:
            if error.status not in (_abi.FFPA_E_UNSUPPORTED, _abi.FFPA_E_NO_DEVICE):
                raise
    return attempt(last)


def heads_of(hq, hk, hv, enable_gqa):
    """Head counts to expand to. One key head serves all query heads as it is; so do groups, when enabled."""
    if enable_gqa:
        if 0 in (hk, hv) or hq % hk or hq % hv:
            raise invalid("Number of heads in key and value must divide the number of heads in query: query has %d "
                          "heads, key %d, value %d" % (hq, hk, hv))
        shared = hk if hk == hv else hq
        return hq, shared, shared
    full = max(hq, hk, hv) if 0 not in (hq, hk, hv) else 0
    if any(h not in (1, full) for h in (hq, hk, hv)):
        raise invalid("ffpa: query has %d heads, key %d, value %d; pass enable_gqa=True to share key heads" % (hq, hk, hv))
    return (full, 1, 1) if hk == hv == 1 else (full, full, full)
