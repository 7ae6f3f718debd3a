package jsonread

import (
	"encoding/json"
	"iter"
	"strings"
)

// The functions below walk JSON text that is known to be valid, and allocate
// nothing. With the library's decoder the annotations of one Pod event may cost
// 1,600 allocations, against 100 here: package tally's test of the worst Pods
// bounds them.

// IsObject reports whether text is one valid JSON object.
func IsObject(text string) bool {
	return json.Valid([]byte(text)) && text[skipSpace(text, 0)] == '{'
}

// Members yields the members of a valid JSON object as they are written; the names
// are unquoted, and one that is present twice is yielded twice.
func Members(object string) iter.Seq2[string, string] {
	return func(yield func(name, raw string) bool) {
		i := skipSpace(object, 0) + 1 // the brace
		for {
			i = skipSpace(object, i)
			if object[i] == '}' {
				return
			}
			if object[i] == ',' {
				i++
				continue
			}
			end := skipString(object, i)
			name := object[i:end]
			start := skipSpace(object, skipSpace(object, end)+1) // the colon
			i = skipValue(object, start)
			if !yield(Unquote(name), object[start:i]) {
				return
			}
		}
	}
}

func skipSpace(s string, i int) int {
	for i < len(s) && (s[i] == ' ' || s[i] == '\t' || s[i] == '\n' || s[i] == '\r') {
		i++
	}
	return i
}

// skipString returns the place behind the string that starts at i.
func skipString(s string, i int) int {
	for i++; s[i] != '"'; i++ {
		if s[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// skipValue returns the place behind the value that starts at i. Behind a value is the end
// of the text or one of the bytes below, and no number or word contains these bytes.
func skipValue(s string, i int) int {
	for depth := 0; ; {
		switch s[i] {
		case '"':
			i = skipString(s, i) - 1
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		if i++; depth == 0 && (i == len(s) || strings.IndexByte(",]} \t\r\n", s[i]) >= 0) {
			return i
		}
	}
}

// Unquote returns the value of a JSON string. If the string has no escapes, the
// value shares its memory.
func Unquote(quoted string) string {
	text := quoted[1 : len(quoted)-1]
	if isPlain(text) {
		return text
	}
	var value string
	_ = json.Unmarshal([]byte(quoted), &value) // it is valid
	return value
}

// isPlain reports whether a string and its JSON differ by the quotes only.
func isPlain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return false
		}
	}
	return true
}
