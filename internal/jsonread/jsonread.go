// Package jsonread reads JSON documents member by member, without a tree and
// without reflection. It is for documents of which few members matter.
//
// Whatever decoder is below it, these promises hold:
//
//   - Names of members are compared unescaped, and case counts.
//   - The type of every value that is read is checked. null is the zero value, as
//     in Kubernetes' own decoder.
//   - A document is refused if a name that is read occurs twice in one object, or
//     if it is nested more than 10,000 deep.
//   - Values that are stepped over are checked for syntax only.
package jsonread

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Reader walks one document once. The zero Reader is ready for Reset. After the
// first error, and after Stop, every call does nothing, so that callers check Err
// once, at the end. A Reader is not safe for concurrent use.
type Reader struct {
	dec      jsontext.Decoder
	document []byte
	input    bytes.Buffer // what dec reads: document, without copying it
	scratch  []byte       // a string whose escapes had to be resolved
	err      error
}

var errStopped = errors.New("the caller has read enough")

// Reset starts over with document, which must not change until the next Reset.
func (r *Reader) Reset(document []byte) {
	r.document = document
	r.input = *bytes.NewBuffer(document)
	r.dec.Reset(&r.input, jsontext.AllowDuplicateNames(true)) // a third of the cost; see Object
	r.err = nil
}

// Fail makes err the error of the document, unless there is one already.
func (r *Reader) Fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// Stop leaves the rest of the document unread, even its syntax.
func (r *Reader) Stop() { r.Fail(errStopped) }

// Going reports whether there is neither an error nor a Stop.
func (r *Reader) Going() bool { return r.err == nil }

// Err returns the first error.
func (r *Reader) Err() error {
	if errors.Is(r.err, errStopped) {
		return nil
	}
	return r.err
}

// mismatch fails because the value just read has another type. It names the place
// and the types, never the value.
func (r *Reader) mismatch(want string, got jsontext.Kind) {
	r.Fail(fmt.Errorf("%s must be %s, not %s", r.place(), want, kindNames[got]))
}

// place is where in the document the last read happened.
func (r *Reader) place() string {
	pointer := string(r.dec.StackPointer())
	if pointer == "" {
		return "the document"
	}
	return strings.ReplaceAll(pointer[1:], "/", ".")
}

var kindNames = map[jsontext.Kind]string{
	'n': "null", 't': "a boolean", 'f': "a boolean", '"': "a string", '0': "a number", '{': "an object", '[': "an array",
}

// open steps into an object or array. It reports false for null, for a value of
// another type and after an error.
func (r *Reader) open(kind jsontext.Kind, want string) bool {
	if r.err != nil {
		return false
	}
	token, err := r.dec.ReadToken()
	switch {
	case err != nil:
		r.err = err
	case token.Kind() == kind:
		return true
	case token.Kind() != 'n':
		r.mismatch(want, token.Kind())
	}
	return false
}

// Object calls member for each member whose name is among known, in the order of
// the document, and steps over the others. member must read the value or step
// over it. At most 64 names can be known. Object reports whether there is an
// object; null is not one.
func (r *Reader) Object(known []string, member func(name string)) bool {
	if !r.open('{', "an object") {
		return false
	}
	var seen uint64
	for r.err == nil && r.dec.PeekKind() != '}' {
		i := indexOf(known, r.memberName())
		switch {
		case r.err != nil:
		case i < 0:
			r.Skip()
		case seen&(1<<i) != 0:
			r.Fail(fmt.Errorf("%s is present twice", r.place()))
		default:
			seen |= 1 << i
			member(known[i])
		}
	}
	r.close()
	return true
}

func indexOf(known []string, name []byte) int {
	for i := range known {
		if known[i] == string(name) {
			return i
		}
	}
	return -1
}

// Array calls element for each element in turn. element must read it or step over
// it. Array reports whether there is an array; null is not one.
func (r *Reader) Array(element func()) bool {
	if !r.open('[', "an array") {
		return false
	}
	for r.err == nil && r.dec.PeekKind() != ']' {
		element()
	}
	r.close()
	return true
}

// close reads the end of an object or array.
func (r *Reader) close() {
	if r.err == nil {
		_, r.err = r.dec.ReadToken()
	}
}

// memberName reads a name; the result is valid until the next read.
func (r *Reader) memberName() []byte {
	if raw := r.value(); raw != nil {
		return r.unquote(raw)
	}
	return nil
}

// value reads a value of any type; nil after an error.
func (r *Reader) value() (raw jsontext.Value) {
	if r.err == nil {
		raw, r.err = r.dec.ReadValue()
	}
	return raw
}

// unquote returns the content of a JSON string, valid until the next read.
func (r *Reader) unquote(raw []byte) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1]
	}
	r.scratch, r.err = jsontext.AppendUnquote(r.scratch[:0], raw)
	return r.scratch
}

// content reads a string; the result is valid until the next read.
func (r *Reader) content() []byte {
	switch raw := r.value(); raw.Kind() {
	case '"':
		return r.unquote(raw)
	case 'n', jsontext.KindInvalid:
	default:
		r.mismatch("a string", raw.Kind())
	}
	return nil
}

// Text reads a string.
func (r *Reader) Text() string { return string(r.content()) }

// TextIs reads a string and compares it, without a copy of it.
func (r *Reader) TextIs(want string) bool { return string(r.content()) == want }

// TextMap reads an object of strings; nil if there is none.
func (r *Reader) TextMap() map[string]string {
	if !r.open('{', "an object") {
		return nil
	}
	values := make(map[string]string, 8)
	for r.err == nil && r.dec.PeekKind() != '}' {
		key := string(r.memberName())
		if _, twice := values[key]; twice {
			r.Fail(fmt.Errorf("%s is present twice", r.place()))
		}
		values[key] = r.Text()
	}
	r.close()
	return values
}

// Skip steps over a value of any type.
func (r *Reader) Skip() { r.value() } // faster than SkipValue

// Offset is where in the document the value just read ends.
func (r *Reader) Offset() int64 { return r.dec.InputOffset() }

// Since returns the value that was read since Offset was start: the bytes of the
// document itself, not a copy. It is nil for null and after an error.
func (r *Reader) Since(start int64) []byte {
	if r.err != nil {
		return nil
	}
	value := bytes.TrimLeft(r.document[start:r.Offset()], ":, \t\r\n")
	if string(value) == "null" {
		return nil
	}
	return value
}

// End checks that nothing follows the document.
func (r *Reader) End() {
	if r.err != nil {
		return
	}
	switch _, err := r.dec.ReadToken(); {
	case err == nil:
		r.err = errors.New("more data follows the JSON document")
	case !errors.Is(err, io.EOF):
		r.err = err
	}
}
