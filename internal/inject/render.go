package inject

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// AppendPatch appends the plan as a JSON patch document: the same operations as
// Operations, without building them. An empty plan appends nothing.
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
		dst = append(dst, `,{"op":"replace","path":"`...)
		dst = e.appendPath(dst)
		dst = append(dst, `","value":`...)
		dst = append(append(dst, e.Body...), '}')
	}
	for group := range insertionGroups(p.Insertions) {
		if p.absent.has(group[0].List) {
			dst = appendWhole(dst, group)
			continue
		}
		for _, e := range group {
			dst = append(dst, `,{"op":"add","path":"`...)
			dst = e.appendPath(dst)
			dst = append(dst, `","value":`...)
			dst = append(append(dst, e.Body...), '}')
		}
	}
	dst = p.appendAnnotations(dst)
	dst[start] = '[' // in place of the first operation's comma
	return append(dst, ']')
}

func (e *Edit) appendPath(dst []byte) []byte {
	dst = append(append(dst, "/spec/"...), e.List...)
	return strconv.AppendInt(append(dst, '/'), int64(e.Index), 10)
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
	if p.noAnnotation {
		dst = append(dst, `,{"op":"add","path":"`+annotationsPath+`","value":{`...)
		for i, key := range keys {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendQuoted(dst, key), ':')
			dst = appendQuoted(dst, p.Annotations[key])
		}
		return append(dst, "}}"...)
	}
	for _, key := range keys {
		dst = append(append(dst, `,{"op":"`...), p.verb(key)...)
		dst = append(dst, `","path":`...)
		dst = appendAnnotationPath(dst, key)
		dst = append(dst, `,"value":`...)
		dst = append(appendQuoted(dst, p.Annotations[key]), '}')
	}
	return dst
}

// appendAnnotationPath appends the quoted JSON pointer to an annotation.
func appendAnnotationPath(dst []byte, key string) []byte {
	if !strings.ContainsAny(key, `~"\`) && isPrintable(key) { // nearly every key
		dst = append(dst, `"`+annotationsPath+`/`...)
		for {
			prefix, rest, found := strings.Cut(key, "/")
			dst = append(dst, prefix...)
			if !found {
				return append(dst, '"')
			}
			dst, key = append(dst, "~1"...), rest
		}
	}
	return appendQuoted(dst, annotationsPath+"/"+escapePointer(key))
}

func isPrintable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

const hexDigits = "0123456789abcdef"

// appendQuoted appends s as a JSON string. Bytes that are no UTF-8 become
// U+FFFD, as in encoding/json.
func appendQuoted(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c < utf8.RuneSelf && c != '"' && c != '\\' {
			i++
			continue
		}
		size := 1
		if c >= utf8.RuneSelf {
			var r rune
			if r, size = utf8.DecodeRuneInString(s[i:]); r != utf8.RuneError || size > 1 {
				i += size
				continue
			}
		}
		dst = append(dst, s[start:i]...)
		dst = appendEscape(dst, c)
		i += size
		start = i
	}
	return append(append(dst, s[start:]...), '"')
}

// appendEscape writes a byte that cannot stand in a JSON string by itself.
func appendEscape(dst []byte, c byte) []byte {
	switch {
	case c == '"' || c == '\\':
		return append(dst, '\\', c)
	case c >= utf8.RuneSelf:
		return append(dst, `\ufffd`...)
	default:
		return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
	}
}
