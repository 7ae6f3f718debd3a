package revision

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sidecarset/operator/internal/jsonread"
)

// encoder writes values of known shape as encoding/json writes the typed value. Each of its
// methods returns the members that the shape does not have as a tree: nil, or the same nesting
// with only these members, and with list elements under their decimal index.
type encoder struct{ buf []byte }

// value writes v. A nil v is absent and writes the zero value.
func (e *encoder) value(s *shape, v any) (unknown map[string]any, err error) {
	switch s.kind {
	case kindObject:
		return e.object(s, v)
	case kindList:
		return e.list(s, v)
	case kindMap:
		return e.mapping(s, v)
	case kindString:
		text, err := typed[string](v, "a string")
		e.buf = appendString(e.buf, text)
		return nil, err
	case kindBool:
		yes, err := typed[bool](v, "true or false")
		e.buf = strconv.AppendBool(e.buf, yes)
		return nil, err
	case kindInt32:
		return nil, e.integer(v, math.MinInt32, math.MaxInt32)
	case kindInt64:
		return nil, e.integer(v, math.MinInt64, math.MaxInt64)
	case kindIntOrString:
		if text, ok := v.(string); ok {
			e.buf = appendString(e.buf, text)
			return nil, nil
		}
		return nil, e.integer(v, math.MinInt32, math.MaxInt32)
	default:
		return nil, e.quantity(v)
	}
}

func (e *encoder) object(s *shape, v any) (map[string]any, error) {
	members, err := typed[map[string]any](v, "an object")
	if err != nil {
		return nil, err
	}
	unknown := unknownMembers(s, members)
	e.buf = append(e.buf, '{')
	start := len(e.buf)
	for i := range s.fields {
		f := &s.fields[i]
		before := len(e.buf)
		if before > start {
			e.buf = append(e.buf, ',')
		}
		e.buf = appendString(e.buf, f.name)
		e.buf = append(e.buf, ':')
		written, inner, err := e.member(f, members[f.name])
		if err != nil {
			return nil, under("."+f.name, err)
		}
		if !written {
			e.buf = e.buf[:before]
		}
		unknown = graft(unknown, f.name, inner)
	}
	e.buf = append(e.buf, '}')
	return unknown, nil
}

// member writes one member's value, and says whether the member belongs there.
func (e *encoder) member(f *field, v any) (written bool, unknown map[string]any, err error) {
	if v == nil && f.presence != always {
		e.buf = append(e.buf, "null"...)
		return f.presence == nullAbsent, nil, nil
	}
	unknown, err = e.value(f.shape, v)
	return f.presence != dropZero || !isZero(v), unknown, err
}

// isZero reports whether a value is the zero value of its type. The type has been checked.
func isZero(v any) bool {
	switch v := v.(type) {
	case string:
		return v == ""
	case bool:
		return !v
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	default:
		n, ok := asInteger(v)
		return ok && n == 0
	}
}

func (e *encoder) list(s *shape, v any) (map[string]any, error) {
	if v == nil {
		e.buf = append(e.buf, "null"...)
		return nil, nil
	}
	elems, err := typed[[]any](v, "a list")
	if err != nil {
		return nil, err
	}
	var unknown map[string]any
	e.buf = append(e.buf, '[')
	for i, elem := range elems {
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		inner, err := e.value(s.elem, elem)
		if err != nil {
			return nil, under("["+strconv.Itoa(i)+"]", err)
		}
		unknown = graft(unknown, strconv.Itoa(i), inner)
	}
	e.buf = append(e.buf, ']')
	return unknown, nil
}

func (e *encoder) mapping(s *shape, v any) (map[string]any, error) {
	members, ok := v.(map[string]any)
	if !ok {
		return nil, mismatch("an object", v)
	}
	e.buf = append(e.buf, '{')
	for i, key := range slices.Sorted(maps.Keys(members)) {
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		e.buf = appendString(e.buf, key)
		e.buf = append(e.buf, ':')
		if _, err := e.value(s.elem, members[key]); err != nil {
			return nil, under("["+strconv.Quote(key)+"]", err)
		}
	}
	e.buf = append(e.buf, '}')
	return nil, nil
}

// typed returns v as a value of type T; the zero value if v is nil.
func typed[T any](v any, want string) (value T, err error) {
	value, ok := v.(T)
	if !ok && v != nil {
		return value, mismatch(want, v)
	}
	return value, nil
}

func (e *encoder) integer(v any, low, high int64) error {
	n, ok := asInteger(v)
	switch {
	case !ok && v != nil:
		return mismatch("a whole number", v)
	case n < low || n > high:
		return &TypeError{Want: fmt.Sprintf("a whole number from %d to %d", low, high), Got: strconv.FormatInt(n, 10)}
	}
	e.buf = strconv.AppendInt(e.buf, n, 10)
	return nil
}

func (e *encoder) quantity(v any) error {
	switch v.(type) {
	case string, int64, int, float64, nil:
	default:
		return mismatch("a quantity such as 100m or 64Mi", v)
	}
	text := appendJSON(nil, v)
	if !jsonread.IsShortQuantity(strings.Trim(string(text), `"`)) {
		return mismatch("a quantity of at most 32 characters", v)
	}
	var q resource.Quantity
	if err := q.UnmarshalJSON(text); err != nil {
		return &TypeError{Want: "a quantity such as 100m or 64Mi", Got: string(text)}
	}
	e.buf = appendString(e.buf, q.String())
	return nil
}

// asInteger accepts the forms that decoders and callers give whole numbers.
func asInteger(v any) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case int:
		return int64(v), true
	case int32:
		return int64(v), true
	case float64:
		n := int64(v)
		return n, float64(n) == v && math.Abs(v) < 1<<53
	default:
		return 0, false
	}
}

// unknownMembers are the members that the shape does not name. A null member counts as absent.
func unknownMembers(s *shape, members map[string]any) map[string]any {
	var unknown map[string]any
	for name, v := range members {
		known := func(f field) bool { return f.name == name }
		if v == nil || slices.ContainsFunc(s.fields, known) {
			continue
		}
		if unknown == nil {
			unknown = make(map[string]any)
		}
		unknown[name] = v
	}
	return unknown
}

// graft adds a branch to a tree that may be nil, unless the branch is empty.
func graft(tree map[string]any, name string, branch map[string]any) map[string]any {
	if branch == nil {
		return tree
	}
	if tree == nil {
		tree = make(map[string]any)
	}
	tree[name] = branch
	return tree
}
