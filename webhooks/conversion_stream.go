package webhooks

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sidecarset/operator/internal/conversion"
)

const (
	// maxConvertedBytes bounds one object of a review: the API server stores
	// less than half of it.
	maxConvertedBytes = 4 << 20
	// undecidedBytes is how much of an answer is held back: until then a request
	// that turns out to be none is refused with a status of its own.
	undecidedBytes = 256 << 10
)

// conversionStream reads one ConversionReview and writes the answer while it
// reads, object by object: neither side of it is ever in memory as a whole.
type conversionStream struct {
	in      *jsontext.Decoder
	bounded *boundedReader
	out     *heldBack
	encoded []byte // of one object, reused

	apiVersion, kind, uid, desired string
	hasRequest, hasDesired         bool
	late                           []byte // objects that came before desiredAPIVersion
	begun                          bool   // the list of converted objects
	failure                        error  // why the review fails
}

func newConversionStream(body io.Reader, w http.ResponseWriter) *conversionStream {
	bounded := &boundedReader{from: body}
	return &conversionStream{in: jsontext.NewDecoder(bounded), bounded: bounded, out: &heldBack{w: w}}
}

// convert returns an error if the request is no ConversionReview. If the answer
// has not begun by then the error is all of it, otherwise the review has failed.
func (c *conversionStream) convert() error {
	err := c.members(c.envelopeMember)
	if err == nil {
		c.allow()
		if _, end := c.in.ReadToken(); !errors.Is(end, io.EOF) {
			err = errors.Join(end, errors.New("something follows the document"))
		}
	}
	if err == nil {
		err = c.problem()
	}
	if err != nil {
		if !c.out.decided {
			return err
		}
		c.failure = err
	}
	return c.finish()
}

// errNotReview is a request that is well-formed and no ConversionReview.
type errNotReview string

func (e errNotReview) Error() string { return string(e) }

// problem says what is missing at the end of the document.
func (c *conversionStream) problem() error {
	switch {
	case c.kind != conversionKind || !conversionVersions[c.apiVersion]:
		return c.wrongKind()
	case !c.hasRequest:
		return errNotReview("request is missing")
	case c.uid == "":
		return errNotReview("request.uid is missing")
	}
	return nil
}

func (c *conversionStream) wrongKind() error {
	return errNotReview(fmt.Sprintf("expected kind %s of apiextensions.k8s.io/v1 or v1beta1, not kind %q of %q", conversionKind, c.kind, c.apiVersion))
}

// allow lets the next value or token be as long as an object may be.
func (c *conversionStream) allow() { c.bounded.until = c.in.InputOffset() + maxConvertedBytes }

// members reads an object; null has no members.
func (c *conversionStream) members(each func(name string) error) error {
	c.allow()
	switch kind := c.in.PeekKind(); kind {
	case 'n':
		return c.in.SkipValue()
	case '{':
	default:
		if kind == 0 { // an error, which reading returns
			_, err := c.in.ReadToken()
			return err
		}
		return fmt.Errorf("%s at %q where an object is expected", kind, c.in.StackPointer())
	}
	if _, err := c.in.ReadToken(); err != nil {
		return err
	}
	for c.in.PeekKind() != '}' {
		c.allow()
		name, err := c.in.ReadToken()
		if err != nil {
			return err
		}
		if err := each(name.String()); err != nil {
			return err
		}
		c.allow()
	}
	_, err := c.in.ReadToken()
	return err
}

func (c *conversionStream) envelopeMember(name string) error {
	switch name {
	case "kind":
		return c.text(&c.kind)
	case "apiVersion":
		return c.text(&c.apiVersion)
	case "request":
		c.hasRequest = c.in.PeekKind() != 'n'
		return c.members(c.requestMember)
	}
	return c.skip()
}

func (c *conversionStream) requestMember(name string) error {
	switch name {
	case "uid":
		return c.text(&c.uid)
	case "desiredAPIVersion":
		c.hasDesired = true
		return c.text(&c.desired)
	case "objects":
		return c.objects()
	}
	return c.skip()
}

func (c *conversionStream) skip() error {
	c.allow()
	return c.in.SkipValue()
}

func (c *conversionStream) text(into *string) error {
	c.allow()
	return json.UnmarshalDecode(c.in, into)
}

// objects converts the list as it is read. If the version is not known yet the
// list is kept, which bounds it to the length of one object; the API server
// writes the version first.
func (c *conversionStream) objects() error {
	if (c.kind != "" || c.apiVersion != "") && (c.kind != conversionKind || !conversionVersions[c.apiVersion]) {
		return c.wrongKind()
	}
	c.allow()
	if kind := c.in.PeekKind(); kind != '[' {
		if kind == 'n' {
			return c.in.SkipValue()
		}
		return errors.New("/request/objects is not a list")
	}
	if !c.hasDesired {
		late, err := c.in.ReadValue()
		c.late = append([]byte(nil), late...)
		return err
	}
	return c.list(c.in, c.allow)
}

// list converts the objects of a list that in is about to read. After a failure
// it only reads on: the API server can use all objects or none.
func (c *conversionStream) list(in *jsontext.Decoder, allow func()) error {
	if c.failure == nil {
		c.failure = conversion.CheckDesired(c.desired)
	}
	if _, err := in.ReadToken(); err != nil {
		return err
	}
	for i := 0; in.PeekKind() != ']'; i++ {
		allow()
		raw, err := in.ReadValue()
		if err != nil {
			return err
		}
		if c.failure == nil {
			c.failure = c.object(i, raw)
		}
		allow()
	}
	_, err := in.ReadToken()
	return err
}

// object converts one object and appends it to the answer.
func (c *conversionStream) object(i int, raw jsontext.Value) error {
	object, err := decodeForConversion(raw)
	if err != nil {
		return fmt.Errorf("decoding request.objects[%d]: %w", i, err)
	}
	converted, err := conversion.Convert(object, c.desired)
	if err != nil {
		return fmt.Errorf("request.objects[%d]: %w", i, err)
	}
	return c.append(converted)
}

func (c *conversionStream) append(converted map[string]any) error {
	buffer := sliceWriter(c.encoded[:0])
	if err := json.MarshalWrite(&buffer, converted, json.Deterministic(true), jsontext.PreserveRawStrings(true)); err != nil {
		return fmt.Errorf("encoding a converted object: %w", err)
	}
	c.encoded = buffer
	c.begin()
	c.out.write(c.encoded)
	return nil
}

// begin writes what precedes a converted object.
func (c *conversionStream) begin() {
	if c.begun {
		c.out.writeString(",")
		return
	}
	c.begun = true
	c.out.writeString(`{"response":{"convertedObjects":[`)
}

// finish writes the rest of the answer. The result stands behind the objects: if
// it is a failure nobody looks at them.
func (c *conversionStream) finish() error {
	if c.failure == nil {
		c.failure = conversion.CheckDesired(c.desired)
	}
	if c.late != nil && c.failure == nil {
		if err := c.list(jsontext.NewDecoder(bytes.NewReader(c.late)), func() {}); err != nil {
			c.failure = err
		}
	}
	result := conversionResult{Status: "Success"}
	if c.failure != nil {
		result = conversionResult{Status: "Failure", Message: c.failure.Error()}
		if !c.out.decided {
			c.out.held, c.begun = c.out.held[:0], false
		}
	}
	switch {
	case c.begun:
		c.out.writeString("],")
	case c.failure == nil:
		c.out.writeString(`{"response":{"convertedObjects":[],`)
	default:
		c.out.writeString(`{"response":{`)
	}
	tail, err := json.Marshal(conversionTail{c.uid, result})
	if err != nil {
		return err
	}
	c.out.write(tail[1:]) // the members only, and the end of response
	rest, err := json.Marshal(conversionEnvelope{c.kind, c.apiVersion})
	if err != nil {
		return err
	}
	c.out.writeString(",")
	c.out.write(rest[1:])
	c.out.decide()
	return nil
}

// conversionTail ends the response, conversionEnvelope the review.
type (
	conversionTail struct {
		UID    string           `json:"uid"`
		Result conversionResult `json:"result"`
	}
	conversionEnvelope struct {
		Kind       string `json:"kind"`
		APIVersion string `json:"apiVersion"`
	}
)

// errValueTooLong ends the reading of a value that no SidecarSet can be.
var errValueTooLong = fmt.Errorf("one value is longer than %d bytes", int64(maxConvertedBytes))

// boundedReader reads up to an offset. A decoder asks for more only if the value
// at which it stands goes on, so the offset bounds that value, and with it the
// decoder's buffer.
type boundedReader struct {
	from        io.Reader
	read, until int64
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.read >= b.until {
		return 0, errValueTooLong
	}
	n, err := b.from.Read(p[:min(int64(len(p)), b.until-b.read)])
	b.read += int64(n)
	return n, err
}

// heldBack is an answer whose beginning is kept until it is long or complete.
// What follows goes out as it is written; a client that has gone is noticed
// when the request is read on.
type heldBack struct {
	w       http.ResponseWriter
	held    []byte
	decided bool
}

func (h *heldBack) writeString(s string) { h.write([]byte(s)) }

func (h *heldBack) write(data []byte) {
	if h.decided {
		_, _ = h.w.Write(data)
		return
	}
	h.held = append(h.held, data...)
	if len(h.held) > undecidedBytes {
		h.decide()
	}
}

// decide sends what is held.
func (h *heldBack) decide() {
	if h.decided {
		return
	}
	h.decided = true
	h.w.Header()["Content-Type"] = jsonContentType
	_, _ = h.w.Write(h.held)
	h.held = nil
}

type sliceWriter []byte

func (s *sliceWriter) Write(p []byte) (int, error) {
	*s = append(*s, p...)
	return len(p), nil
}
