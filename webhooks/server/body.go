package server

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

var (
	errBodyTooLong = errors.New("the body is too long")
	errHeldTooMuch = errors.New("too many bytes are held")
)

// heldBody is the body of a request, in memory.
type heldBody struct {
	gate   *gate
	client netip.Addr
	w      http.ResponseWriter
	data   []byte // once fill has returned
	at     int    // how much of data has been read

	size     int64     // bytes that have been read
	small    []byte    // where a body begins, reused
	segments []*[]byte // where a long one goes on

	// Guarded by the ledger.
	held     int64 // bytes that count as held
	progress time.Time
	cut      bool
}

// heldBodies are reused with buffers in which most Pods fit.
var heldBodies = sync.Pool{New: func() any { return &heldBody{small: make([]byte, 0, smallBody)} }}

// segments are where long bodies are gathered: a buffer that doubled would leave
// its own length of garbage, and a client that sends half a body much of that.
var segments = sync.Pool{New: func() any { return new(make([]byte, 0, segmentSize)) }}

const (
	smallBody   = 16 << 10
	segmentSize = 64 << 10
	// stalledAfter is how long a body may bring nothing before another one of the
	// same client may take its bytes.
	stalledAfter = 250 * time.Millisecond
)

// ledger bounds the bytes of all bodies of a group that have been read or are
// being read and are not answered yet. A body that is one too many takes the
// bytes of one that has not arrived as a whole: of the client address that holds
// the most in such bodies, the one that has brought nothing for the longest time.
// So clients that send slowly keep out nobody but themselves.
type ledger struct {
	most int64

	mu       sync.Mutex
	held     int64
	arriving map[*heldBody]struct{}
}

// reserved is what long bodies leave to short ones.
func (l *ledger) reserved() int64 { return l.most / 16 }

// begin counts a body that is about to arrive, and reports whether it fits.
func (l *ledger) begin(b *heldBody) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.arriving[b] = struct{}{}
	return l.add(b, smallBody, l.most)
}

// more counts another segment of a body.
func (l *ledger) more(b *heldBody) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !b.cut && l.add(b, segmentSize, l.most-l.reserved())
}

// arrived says that no other body may take the bytes of this one any more, and
// reports whether none has.
func (l *ledger) arrived(b *heldBody) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.arriving, b)
	return !b.cut
}

// end gives all bytes of a body back.
func (l *ledger) end(b *heldBody) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.arriving, b)
	l.held -= b.held
	b.held = 0
}

func (l *ledger) add(b *heldBody, n, most int64) bool {
	b.progress = time.Now()
	b.held += n
	l.held += n
	for l.held > most {
		victim := l.victim(b)
		if victim == nil {
			return false
		}
		l.held -= victim.held
		victim.held, victim.cut = 0, true
		delete(l.arriving, victim)
		// An error means that the connection has ended already.
		_ = http.NewResponseController(victim.w).SetReadDeadline(time.Unix(1, 0))
	}
	return true
}

// victim is the body that has to give way to another one; nil if none has.
func (l *ledger) victim(newest *heldBody) *heldBody {
	sums := map[netip.Addr]int64{}
	greediest := newest.client
	for b := range l.arriving {
		if sums[b.client] += b.held; sums[b.client] > sums[greediest] {
			greediest = b.client
		}
	}
	var victim *heldBody
	for b := range l.arriving {
		if b != newest && b.client == greediest && (victim == nil || b.progress.Before(victim.progress)) {
			victim = b
		}
	}
	if victim != nil && greediest == newest.client && newest.progress.Sub(victim.progress) < stalledAfter {
		return nil
	}
	return victim
}

// release ends the use of the body and of its bytes.
func (b *heldBody) release() {
	b.releaseSegments()
	b.gate.ledger.end(b)
	*b = heldBody{small: b.small[:0]}
	heldBodies.Put(b)
}

func (b *heldBody) releaseSegments() {
	for _, s := range b.segments {
		*s = (*s)[:0]
		segments.Put(s)
	}
	b.segments = nil
}

// fill reads the whole body.
func (b *heldBody) fill(from io.Reader) error {
	ledger := &b.gate.ledger
	if !ledger.begin(b) {
		return errHeldTooMuch
	}
	buffer := &b.small
	for {
		for len(*buffer) < cap(*buffer) {
			n, err := from.Read((*buffer)[len(*buffer):cap(*buffer)])
			*buffer = (*buffer)[:len(*buffer)+n]
			b.size += int64(n)
			switch {
			case b.size > b.gate.limits.Body:
				return errBodyTooLong
			case errors.Is(err, io.EOF):
				if !ledger.arrived(b) {
					return errHeldTooMuch
				}
				b.join()
				return nil
			case err != nil:
				if !ledger.arrived(b) {
					return errHeldTooMuch // which is why reading failed
				}
				return err
			}
		}
		if !ledger.more(b) {
			return errHeldTooMuch
		}
		buffer = b.another()
	}
}

// another is the next segment.
func (b *heldBody) another() *[]byte {
	segment := segments.Get().(*[]byte)
	b.segments = append(b.segments, segment)
	return segment
}

// join makes data of what has been read.
func (b *heldBody) join() {
	if len(b.segments) == 0 {
		b.data = b.small
		return
	}
	b.data = append(make([]byte, 0, b.size), b.small...)
	for _, s := range b.segments {
		b.data = append(b.data, *s...)
	}
	b.releaseSegments()
}

// Read implements io.Reader.
func (b *heldBody) Read(p []byte) (int, error) {
	if b.at >= len(b.data) {
		return 0, io.EOF
	}
	n := copy(p, b.data[b.at:])
	b.at += n
	return n, nil
}

// Close implements io.Closer; the server closes what is left.
func (*heldBody) Close() error { return nil }

// Held is the body of a request, if a gate has read it.
func Held(r *http.Request) ([]byte, bool) {
	body, ok := r.Body.(*heldBody)
	if !ok {
		return nil, false
	}
	return body.data, true
}

// WholeBody is the body of a request, which a gate has read already, or has not.
func WholeBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if held, ok := r.Body.(*heldBody); ok {
		return held.data, nil
	}
	if r.ContentLength > limit {
		return nil, TooLarge(limit)
	}
	document, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var tooLong *http.MaxBytesError
	if errors.As(err, &tooLong) {
		return nil, TooLarge(tooLong.Limit)
	}
	if err != nil {
		return nil, Refusal{Code: http.StatusBadRequest, Message: "reading the request body: " + err.Error()}
	}
	return document, nil
}

// IsJSON reports whether a Content-Type is that of JSON.
func IsJSON(contentType string) bool {
	const want = "application/json"
	if contentType == want {
		return true
	}
	mediaType, _, err := mime.ParseMediaType(contentType)
	return err == nil && mediaType == want
}
