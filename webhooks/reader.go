package webhooks

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// reader walks one JSON document once. It is the only code that knows the JSON
// decoder; whatever decodes it, these promises hold: member names are compared
// unescaped and with their case, the type of every value that is read is
// checked, null counts as the zero value (as Kubernetes' own decoder has it), a
// name that is read and stands twice in one object is refused, and so are
// documents nested more than 10,000 deep. What is stepped over is checked for
// syntax only.
//
// The zero reader is ready for reset. The first error sticks: every later call is a no-op, so that callers check
// err once, at the end.
type reader struct {
	dec      jsontext.Decoder
	document []byte
	input    bytes.Buffer // what dec reads: document, without copying it
	// scratch holds a string whose escapes had to be resolved.
	scratch []byte
	err     error
}

// reset starts over with document, which must not change until release.
func (r *reader) reset(document []byte) {
	r.document = document
	r.input = *bytes.NewBuffer(document)
	r.dec.Reset(&r.input, jsontext.AllowDuplicateNames(true)) // a third of the cost; see object
	r.err = nil
}

// release lets go of the document.
func (r *reader) release() {
	r.reset(nil)
}

// fail keeps the first error.
func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// mismatch fails because the value just read is not of the type that belongs
// there. It names the place and the types, never the value.
func (r *reader) mismatch(want string, got jsontext.Kind) {
	r.fail(fmt.Errorf("%s must be %s, not %s", r.place(), want, kindNames[got]))
}

// place is where in the document the last read happened.
func (r *reader) place() string {
	pointer := string(r.dec.StackPointer())
	if pointer == "" {
		return "the document"
	}
	return strings.ReplaceAll(pointer[1:], "/", ".")
}

var kindNames = map[jsontext.Kind]string{
	'n': "null", 't': "a boolean", 'f': "a boolean", '"': "a string", '0': "a number", '{': "an object", '[': "an array",
}

// open steps into an object or array. It reports false where there is none to
// step into: null, an error, or a value of another type.
func (r *reader) open(kind jsontext.Kind, want string) bool {
	if r.err != nil {
		return false
	}
	token, err := r.dec.ReadToken()
	switch {
	case err != nil:
		r.fail(err)
		return false
	case token.Kind() == kind:
		return true
	case token.Kind() != 'n':
		r.mismatch(want, token.Kind())
	}
	return false
}

// object calls member for each member whose name is among known, in document
// order, and steps over the others; member must read the value. It reports
// whether there is an object, which null is not.
func (r *reader) object(known []string, member func(name string)) bool {
	if !r.open('{', "an object") {
		return false
	}
	var seen uint64
	for r.err == nil && r.dec.PeekKind() != '}' {
		i := indexOf(known, r.memberName())
		switch {
		case r.err != nil:
		case i < 0:
			r.skip()
		case seen&(1<<i) != 0:
			r.fail(fmt.Errorf("%s stands twice", r.place()))
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

// array calls element for each element in turn; element must read or skip it.
// It reports whether there is an array, which null is not.
func (r *reader) array(element func()) bool {
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
func (r *reader) close() {
	if r.err == nil {
		_, err := r.dec.ReadToken()
		r.err = err
	}
}

// memberName reads a name; the result is valid until the next read.
func (r *reader) memberName() []byte {
	raw, err := r.dec.ReadValue()
	if err != nil {
		r.err = err
		return nil
	}
	return r.unquote(raw)
}

// unquote returns the content of a JSON string, valid until the next read.
func (r *reader) unquote(raw []byte) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1]
	}
	r.scratch, r.err = jsontext.AppendUnquote(r.scratch[:0], raw)
	return r.scratch
}

// content reads a string; the result is valid until the next read.
func (r *reader) content() []byte {
	if r.err != nil {
		return nil
	}
	raw, err := r.dec.ReadValue()
	if err != nil {
		r.err = err
		return nil
	}
	switch raw.Kind() {
	case '"':
		return r.unquote(raw)
	case 'n':
	default:
		r.mismatch("a string", raw.Kind())
	}
	return nil
}

// text reads a string.
func (r *reader) text() string {
	return string(r.content())
}

// textIs reads a string and compares it, without a copy of it.
func (r *reader) textIs(want string) bool {
	return string(r.content()) == want
}

// textMap reads an object of strings; nil where there is none.
func (r *reader) textMap() map[string]string {
	if !r.open('{', "an object") {
		return nil
	}
	values := make(map[string]string, 8)
	for r.err == nil && r.dec.PeekKind() != '}' {
		key := string(r.memberName())
		if _, twice := values[key]; twice {
			r.fail(fmt.Errorf("%s stands twice", r.place()))
		}
		values[key] = r.text()
	}
	r.close()
	return values
}

// skip steps over a value of any type.
func (r *reader) skip() {
	if r.err == nil {
		_, r.err = r.dec.ReadValue() // faster than SkipValue
	}
}

// offset is where in the document the value just read ends.
func (r *reader) offset() int64 { return r.dec.InputOffset() }

// since returns the value that was read since offset was start, as it stands in
// the document and without copying it; nil for null and after an error.
func (r *reader) since(start int64) []byte {
	if r.err != nil {
		return nil
	}
	value := bytes.TrimLeft(r.document[start:r.offset()], ": \t\r\n")
	if string(value) == "null" {
		return nil
	}
	return value
}

// end checks that nothing follows the document.
func (r *reader) end() {
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

// appendText appends s as a JSON string. Bytes that are no UTF-8 are replaced.
func appendText(dst []byte, s string) []byte {
	dst, _ = jsontext.AppendQuote(dst, s) // the error only says that bytes were replaced
	return dst
}
