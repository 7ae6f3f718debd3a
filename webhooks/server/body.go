package server

import (
	"errors"
	"io"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

var (
	errBodyTooLong = errors.New("the body is too long")
	errHeldTooMuch = errors.New("too many bytes are held")
)

// bufferedBody is the body of one request, in memory.
type bufferedBody struct {
	client netip.Addr
	w      http.ResponseWriter
	data   []byte

	// Guarded by the ledger.
	held     int64 // bytes that count: the room that data takes
	progress time.Time
	cut      bool // another body has taken the bytes of this one
}

// bodies are reused with buffers in which most Pods fit.
var bodies = sync.Pool{New: func() any { return &bufferedBody{data: make([]byte, 0, smallBody)} }}

const (
	// smallBody is the room of a body, in bytes, before any of it has arrived.
	smallBody = 16 << 10
	// stalledAfter is how long a body may make no progress before another body of the
	// same client may take its bytes.
	stalledAfter = 250 * time.Millisecond
)

// ledger bounds the bytes of all bodies of a group that have been read or are
// being read and are not answered yet. If a body does not fit, the ledger cuts another
// body that is still arriving. It takes the client address that holds the most bytes in
// such bodies, and cuts its body that has made no progress for the longest time. So
// clients that send slowly keep out only themselves.
type ledger struct {
	most int64

	mu       sync.Mutex
	held     int64
	arriving map[*bufferedBody]struct{}
}

// reserved is the number of bytes that long bodies leave to short ones.
func (l *ledger) reserved() int64 { return l.most / 16 }

// begin counts a body that is about to arrive, and reports whether it fits.
func (l *ledger) begin(b *bufferedBody) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.arriving[b] = struct{}{}
	return l.add(b, int64(cap(b.data)), l.most)
}

// more counts n more bytes of a body.
func (l *ledger) more(b *bufferedBody, n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !b.cut && l.add(b, int64(n), l.most-l.reserved())
}

// arrived notes that the whole body has been read. From then on, other bodies cannot take
// its bytes. It returns false if another body has taken them already.
func (l *ledger) arrived(b *bufferedBody) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.arriving, b)
	return !b.cut
}

// end gives all bytes of a body back.
func (l *ledger) end(b *bufferedBody) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.arriving, b)
	l.held -= b.held
	b.held = 0
}

func (l *ledger) add(b *bufferedBody, n, most int64) bool {
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

// victim returns the body to cut, so that newest may fit; nil if none may be cut.
func (l *ledger) victim(newest *bufferedBody) *bufferedBody {
	sums := map[netip.Addr]int64{}
	greediest := newest.client
	for b := range l.arriving {
		if sums[b.client] += b.held; sums[b.client] > sums[greediest] {
			greediest = b.client
		}
	}
	var victim *bufferedBody
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

// release ends the use of the body and of its bytes. A buffer that a long body
// has grown is left to the garbage collector.
func (b *bufferedBody) release(l *ledger) {
	l.end(b)
	if cap(b.data) > smallBody {
		return
	}
	*b = bufferedBody{data: b.data[:0]}
	bodies.Put(b)
}

// fill reads the whole body of r. The buffer grows as bytes arrive, and is never more than
// twice as long as the bytes that have arrived. The Content-Length of the request can only
// make it shorter.
func (b *bufferedBody) fill(r *http.Request, limits Limits, l *ledger) error {
	if !l.begin(b) {
		return errHeldTooMuch
	}
	for {
		if room := cap(b.data); len(b.data) == room {
			more := min(room, int(limits.Body)+1-room)
			if left := int(r.ContentLength) + 1 - room; left > 0 {
				more = min(more, left)
			}
			if !l.more(b, more) {
				return errHeldTooMuch
			}
			b.data = append(make([]byte, 0, room+more), b.data...)
		}
		n, err := r.Body.Read(b.data[len(b.data):cap(b.data)])
		b.data = b.data[:len(b.data)+n]
		switch {
		case int64(len(b.data)) > limits.Body:
			return errBodyTooLong
		case err == nil:
		case !l.arrived(b):
			return errHeldTooMuch // which is why reading failed
		case errors.Is(err, io.EOF):
			return nil
		default:
			return err
		}
	}
}
