package jsonread

import "github.com/go-json-experiment/json/jsontext"

// AppendText appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD,
// as in encoding/json.
func AppendText[Text ~string | ~[]byte](dst []byte, s Text) []byte {
	dst, _ = jsontext.AppendQuote(dst, s) // the error only says that bytes were replaced
	return dst
}

// AppendPointer appends a slash and the name of a member as one step of a JSON
// pointer.
func AppendPointer(dst []byte, member string) []byte {
	dst = append(dst, '/')
	for i := range len(member) {
		switch member[i] {
		case '~':
			dst = append(dst, "~0"...)
		case '/':
			dst = append(dst, "~1"...)
		default:
			dst = append(dst, member[i])
		}
	}
	return dst
}
