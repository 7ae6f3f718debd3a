package inject

import (
	"slices"
	"strconv"

	"github.com/sidecarset/operator/internal/jsonread"
)

// AppendPatch appends the plan as a JSON patch document, its operations in the
// order in which they have to be applied. Each insertion is one "add" at an
// explicit index, so that members of the user's containers that this build does
// not know are never rewritten. A list that the Pod lacks is added whole. An
// empty plan appends nothing.
func (p Plan) AppendPatch(dst []byte) []byte {
	if p.Empty() {
		return dst
	}
	start := len(dst)
	for _, e := range p.Removals {
		dst = append(dst, `,{"op":"remove","path":"`...)
		dst = append(e.appendPath(dst), `"}`...)
	}
	for _, e := range p.Replacements {
		dst = e.appendValue(append(dst, `,{"op":"replace","path":"`...))
	}
	for _, e := range p.Additions {
		dst = e.appendValue(append(dst, `,{"op":"add","path":"`...))
	}
	for rest := p.Insertions; len(rest) > 0; {
		n := 1
		if !rest[0].whole {
			dst = rest[0].appendValue(append(dst, `,{"op":"add","path":"`...))
		} else {
			for n < len(rest) && rest[n].List == rest[0].List {
				n++
			}
			dst = appendWhole(dst, rest[:n])
		}
		rest = rest[n:]
	}
	dst = p.appendAnnotations(dst)
	dst[start] = '[' // in place of the first operation's comma
	return append(dst, ']')
}

// appendValue appends the rest of an operation that has a value.
func (e *Edit) appendValue(dst []byte) []byte {
	dst = append(e.appendPath(dst), `","value":`...)
	return append(append(dst, e.Body...), '}')
}

func (e *Edit) appendPath(dst []byte) []byte {
	dst = append(append(dst, "/spec/"...), e.List...)
	dst = strconv.AppendInt(append(dst, '/'), int64(e.Index), 10)
	if e.member != "" {
		dst = append(append(dst, '/'), e.member...)
	}
	return dst
}

// appendWhole adds a list that the Pod lacks.
func appendWhole(dst []byte, group []Edit) []byte {
	dst = append(append(dst, `,{"op":"add","path":"/spec/`...), group[0].List...)
	dst = append(dst, `","value":[`...)
	for i, e := range group {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, e.Body...)
	}
	return append(dst, "]}"...)
}

func (p Plan) appendAnnotations(dst []byte) []byte {
	if len(p.Annotations) == 0 {
		return dst
	}
	var few [8]string // more is rare
	keys := few[:0]
	for key := range p.Annotations {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	if len(p.podHas) == 0 {
		dst = append(dst, `,{"op":"add","path":"`+annotationsPath+`","value":{`...)
		for i, key := range keys {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(jsonread.AppendText(dst, key), ':')
			dst = jsonread.AppendText(dst, p.Annotations[key])
		}
		return append(dst, "}}"...)
	}
	var path [96]byte // more is rare
	for _, key := range keys {
		op := "add"
		if _, present := p.podHas[key]; present {
			op = "replace"
		}
		dst = append(append(dst, `,{"op":"`...), op...)
		dst = append(dst, `","path":`...)
		dst = jsonread.AppendText(dst, jsonread.AppendPointer(append(path[:0], annotationsPath...), key))
		dst = append(dst, `,"value":`...)
		dst = append(jsonread.AppendText(dst, p.Annotations[key]), '}')
	}
	return dst
}
