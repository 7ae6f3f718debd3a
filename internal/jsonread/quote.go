package jsonread

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// AppendText appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD,
// as in encoding/json.
func AppendText(dst []byte, s string) []byte {
	dst, _ = jsontext.AppendQuote(dst, s) // the error only says that bytes were replaced
	return dst
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// EscapePointer writes the name of a member as one step of a JSON pointer.
func EscapePointer(member string) string { return pointerEscapes.Replace(member) }
